#include "hash/index_map.h"

#include <bit>
#include <cstddef>

#include "support/error.h"

namespace staging {

namespace {

constexpr int kMaxUnitLog2 = 4;

// The largest power of two, of at most 16, that divides what is put in.
class CommonUnit {
 public:
  void divide(std::uint64_t value) { bits_ |= value; }
  int log2() const { return std::countr_zero(bits_); }

 private:
  std::uint64_t bits_ = std::uint64_t{1} << kMaxUnitLog2;
};

}  // namespace

IndexMap::IndexMap(const StridedBytes& tensor) {
  STAGING_EXPECTS(tensor.sizes.size() == tensor.strides_nbytes.size(), "sizes has ",
                  tensor.sizes.size(), " dimensions and strides_nbytes ",
                  tensor.strides_nbytes.size());
  STAGING_EXPECTS(tensor.element_nbytes > 0, "element_nbytes must be positive, got ",
                  tensor.element_nbytes);
  nbytes = static_cast<std::uint64_t>(tensor.element_nbytes);
  for (const std::int64_t size : tensor.sizes) {
    STAGING_EXPECTS(size >= 0, "sizes must not be negative, got ", size);
    nbytes *= static_cast<std::uint64_t>(size);
  }
  if (nbytes == 0) return;

  // An element is an innermost dimension of bytes; whatever joins a dimension further in
  // extends it.
  dims.push_back({tensor.element_nbytes, 1});
  for (std::size_t d = tensor.sizes.size(); d-- > 0;) {
    const Dim dim{tensor.sizes[d], tensor.strides_nbytes[d]};
    STAGING_EXPECTS(dim.stride_nbytes >= 0, "strides_nbytes must not be negative, got ",
                    dim.stride_nbytes);
    if (dim.size == 1) continue;
    Dim& inner = dims.back();
    if (dim.stride_nbytes == inner.stride_nbytes * inner.size) {
      inner.size *= dim.size;
    } else {
      dims.push_back(dim);
    }
  }

  CommonUnit unit;
  unit.divide(reinterpret_cast<std::uintptr_t>(tensor.data));
  if (dims.size() == 1) {
    dims.clear();
    unit_log2 = unit.log2();
    return;
  }
  unit.divide(static_cast<std::uint64_t>(dims.front().size));
  for (std::size_t d = 1; d < dims.size(); ++d) {
    unit.divide(static_cast<std::uint64_t>(dims[d].stride_nbytes));
  }
  unit_log2 = unit.log2();
  const std::int64_t unit_nbytes = std::int64_t{1} << unit_log2;
  dims.front() = {dims.front().size / unit_nbytes, unit_nbytes};
  if (dims.front().size == 1) dims.erase(dims.begin());
}

}  // namespace staging
