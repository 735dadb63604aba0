// How a strided tensor's bytes lie, in the fewest dimensions.
//
// Purpose: what reads a tensor in logical order, on the host and on the device, needs to
//   know: which dimensions are really there, and how many bytes can be taken at a time.
// Owner: a value. Thread-safety: a value.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace staging {

// A tensor as its bytes are read: in logical (row-major) order. Strides count bytes, may be
// 0 or overlap, and are not negative.
struct StridedBytes {
  const void* data = nullptr;
  std::int64_t element_nbytes = 1;
  std::span<const std::int64_t> sizes;
  std::span<const std::int64_t> strides_nbytes;
};

// The same bytes in units of a power of two of at most 16 bytes, which the address and the
// strides are multiples of. Dimensions of one and dimensions that continue each other are
// gone; none are left where all bytes lie in order.
struct IndexMap {
  struct Dim {
    std::int64_t size;  // in units
    std::int64_t stride_nbytes;
  };

  // Throws InvalidArgument for what is no tensor.
  explicit IndexMap(const StridedBytes& tensor);

  bool contiguous() const noexcept { return dims.empty(); }

  std::uint64_t nbytes = 0;
  int unit_log2 = 0;
  std::vector<Dim> dims;  // innermost first
};

}  // namespace staging
