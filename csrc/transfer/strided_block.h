// A strided block of elements, and how it is read and written on the host.
//
// Purpose: says whether a slice is one run of bytes, rows with gaps, or something that only
//   an element-wise copy describes; and does that copy on the host.
// Owner: values. Thread-safety: stateless.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace staging {

// The most dimensions that are left after merging; more than that is refused by name.
inline constexpr int kMaxBlockDims = 8;

// Two blocks of one shape, source and destination. Dimensions of size 1 are dropped and
// neighbours that are contiguous in both blocks are merged.
struct BlockPair {
  int ndim = 0;
  std::size_t element_nbytes = 0;
  std::int64_t element_count = 1;
  std::array<std::int64_t, kMaxBlockDims> sizes{};
  std::array<std::int64_t, kMaxBlockDims> src_strides{};  // in bytes
  std::array<std::int64_t, kMaxBlockDims> dst_strides{};

  std::size_t nbytes() const noexcept {
    return static_cast<std::size_t>(element_count) * element_nbytes;
  }
  // Both sides are one run of bytes in the same order.
  bool contiguous() const noexcept;
  // Rows of contiguous bytes with a constant pitch on each side (cudaMemcpy2D's shape).
  bool rows(std::size_t* width_nbytes, std::size_t* height, std::size_t* src_pitch,
            std::size_t* dst_pitch) const noexcept;
};

// `sizes` is the shape that both have; strides are in elements. Throws InvalidArgument where
// more than kMaxBlockDims dimensions are left.
BlockPair make_block_pair(std::span<const std::int64_t> sizes,
                          std::span<const std::int64_t> src_strides,
                          std::span<const std::int64_t> dst_strides, std::size_t element_nbytes);

// The pair from the same source to (or from a destination to) a dense, row-major block.
BlockPair to_dense(std::span<const std::int64_t> sizes, std::span<const std::int64_t> src_strides,
                   std::size_t element_nbytes);
BlockPair from_dense(std::span<const std::int64_t> sizes, std::span<const std::int64_t> dst_strides,
                     std::size_t element_nbytes);

// Copies on the host. Source and destination do not overlap.
void copy_on_host(const BlockPair& pair, void* dst, const void* src);

}  // namespace staging
