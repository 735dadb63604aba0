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

  // The runs of bytes that are contiguous on both sides: how many, and how long each is.
  std::int64_t run_count() const noexcept;
  std::size_t run_nbytes() const noexcept;
  // Calls visit(src_offset_bytes, dst_offset_bytes) for each of them, in logical order.
  template <typename Visit>
  void for_each_run(Visit visit) const {
    std::array<std::int64_t, kMaxBlockDims> index{};
    const int outer = outer_dims();
    for (std::int64_t run = run_count(); run > 0; --run) {
      std::int64_t src = 0;
      std::int64_t dst = 0;
      for (int d = 0; d < outer; ++d) {
        src += index[static_cast<std::size_t>(d)] * src_strides[static_cast<std::size_t>(d)];
        dst += index[static_cast<std::size_t>(d)] * dst_strides[static_cast<std::size_t>(d)];
      }
      visit(src, dst);
      for (int d = outer - 1; d >= 0; --d) {
        const auto i = static_cast<std::size_t>(d);
        if (++index[i] < sizes[i]) break;
        index[i] = 0;
      }
    }
  }

 private:
  // How many dimensions lie around the runs.
  int outer_dims() const noexcept;
};

// The same block in the largest elements, up to 16 bytes, that its shape, its strides and both
// addresses allow: what one thread of a kernel copies at once.
BlockPair widened(const BlockPair& pair, const void* dst, const void* src) noexcept;

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
