#include "transfer/strided_block.h"

#include <cstring>
#include <vector>

#include "support/error.h"

namespace staging {

namespace {

std::vector<std::int64_t> dense_strides(std::span<const std::int64_t> sizes) {
  std::vector<std::int64_t> strides(sizes.size());
  std::int64_t stride = 1;
  for (std::size_t d = sizes.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= sizes[d];
  }
  return strides;
}

template <std::size_t kNbytes>
void copy_elements(std::byte* dst, std::int64_t dst_stride, const std::byte* src,
                   std::int64_t src_stride, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    std::memcpy(dst + i * dst_stride, src + i * src_stride, kNbytes);
  }
}

void copy_row(const BlockPair& pair, std::byte* dst, const std::byte* src) {
  const int d = pair.ndim - 1;
  const std::int64_t count = pair.sizes[d];
  const std::int64_t src_stride = pair.src_strides[d];
  const std::int64_t dst_stride = pair.dst_strides[d];
  const auto nbytes = static_cast<std::int64_t>(pair.element_nbytes);
  if (src_stride == nbytes && dst_stride == nbytes) {
    std::memcpy(dst, src, static_cast<std::size_t>(count * nbytes));
    return;
  }
  switch (pair.element_nbytes) {
    case 1:
      return copy_elements<1>(dst, dst_stride, src, src_stride, count);
    case 2:
      return copy_elements<2>(dst, dst_stride, src, src_stride, count);
    case 4:
      return copy_elements<4>(dst, dst_stride, src, src_stride, count);
    case 8:
      return copy_elements<8>(dst, dst_stride, src, src_stride, count);
    case 16:
      return copy_elements<16>(dst, dst_stride, src, src_stride, count);
    default:
      for (std::int64_t i = 0; i < count; ++i) {
        std::memcpy(dst + i * dst_stride, src + i * src_stride, pair.element_nbytes);
      }
  }
}

void copy_dimension(const BlockPair& pair, int d, std::byte* dst, const std::byte* src) {
  if (d == pair.ndim - 1) return copy_row(pair, dst, src);
  for (std::int64_t i = 0; i < pair.sizes[d]; ++i) {
    copy_dimension(pair, d + 1, dst + i * pair.dst_strides[d], src + i * pair.src_strides[d]);
  }
}

}  // namespace

bool BlockPair::contiguous() const noexcept {
  const auto nbytes = static_cast<std::int64_t>(element_nbytes);
  return ndim == 0 || (ndim == 1 && src_strides[0] == nbytes && dst_strides[0] == nbytes);
}

bool BlockPair::rows(std::size_t* width_nbytes, std::size_t* height, std::size_t* src_pitch,
                     std::size_t* dst_pitch) const noexcept {
  const auto element = static_cast<std::int64_t>(element_nbytes);
  const bool dense_rows = ndim == 2 && src_strides[1] == element && dst_strides[1] == element;
  if (!dense_rows && ndim != 1) return false;
  const std::int64_t width = dense_rows ? sizes[1] * element : element;
  if (src_strides[0] < width || dst_strides[0] < width) return false;
  *width_nbytes = static_cast<std::size_t>(width);
  *height = static_cast<std::size_t>(sizes[0]);
  *src_pitch = static_cast<std::size_t>(src_strides[0]);
  *dst_pitch = static_cast<std::size_t>(dst_strides[0]);
  return true;
}

int BlockPair::outer_dims() const noexcept {
  const auto nbytes = static_cast<std::int64_t>(element_nbytes);
  if (ndim == 0) return 0;
  const auto last = static_cast<std::size_t>(ndim - 1);
  return src_strides[last] == nbytes && dst_strides[last] == nbytes ? ndim - 1 : ndim;
}

std::int64_t BlockPair::run_count() const noexcept {
  return outer_dims() == ndim ? element_count
                              : element_count / sizes[static_cast<std::size_t>(ndim - 1)];
}

std::size_t BlockPair::run_nbytes() const noexcept {
  if (outer_dims() == ndim) return element_nbytes;
  return static_cast<std::size_t>(sizes[static_cast<std::size_t>(ndim - 1)]) * element_nbytes;
}

BlockPair widened(const BlockPair& pair, const void* dst, const void* src) noexcept {
  BlockPair wide = pair;
  if (wide.ndim == 0 || wide.element_count == 0) return wide;
  const auto last = static_cast<std::size_t>(wide.ndim - 1);
  while (wide.element_nbytes < 16) {
    const auto nbytes = static_cast<std::int64_t>(wide.element_nbytes);
    const std::int64_t twice = 2 * nbytes;
    bool possible =
        wide.src_strides[last] == nbytes && wide.dst_strides[last] == nbytes &&
        wide.sizes[last] % 2 == 0 &&
        reinterpret_cast<std::uintptr_t>(dst) % static_cast<std::uintptr_t>(twice) == 0 &&
        reinterpret_cast<std::uintptr_t>(src) % static_cast<std::uintptr_t>(twice) == 0;
    for (std::size_t d = 0; d < last; ++d) {
      possible = possible && wide.src_strides[d] % twice == 0 && wide.dst_strides[d] % twice == 0;
    }
    if (!possible) break;
    wide.element_nbytes *= 2;
    wide.element_count /= 2;
    wide.sizes[last] /= 2;
    wide.src_strides[last] = wide.dst_strides[last] = twice;
  }
  return wide;
}

BlockPair make_block_pair(std::span<const std::int64_t> sizes,
                          std::span<const std::int64_t> src_strides,
                          std::span<const std::int64_t> dst_strides, std::size_t element_nbytes) {
  BlockPair pair;
  pair.element_nbytes = element_nbytes;
  const auto nbytes = static_cast<std::int64_t>(element_nbytes);
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    pair.element_count *= sizes[d];
    if (sizes[d] == 1) continue;
    const std::int64_t src = src_strides[d] * nbytes;
    const std::int64_t dst = dst_strides[d] * nbytes;
    if (pair.ndim > 0) {
      const int last = pair.ndim - 1;
      if (pair.src_strides[last] == src * sizes[d] && pair.dst_strides[last] == dst * sizes[d]) {
        pair.sizes[last] *= sizes[d];
        pair.src_strides[last] = src;
        pair.dst_strides[last] = dst;
        continue;
      }
    }
    STAGING_EXPECTS(pair.ndim < kMaxBlockDims, "a copy of more than ", kMaxBlockDims,
                    " dimensions that cannot be merged is not supported; call contiguous() on one "
                    "side first");
    pair.sizes[pair.ndim] = sizes[d];
    pair.src_strides[pair.ndim] = src;
    pair.dst_strides[pair.ndim] = dst;
    ++pair.ndim;
  }
  return pair;
}

BlockPair to_dense(std::span<const std::int64_t> sizes, std::span<const std::int64_t> src_strides,
                   std::size_t element_nbytes) {
  return make_block_pair(sizes, src_strides, dense_strides(sizes), element_nbytes);
}

BlockPair from_dense(std::span<const std::int64_t> sizes, std::span<const std::int64_t> dst_strides,
                     std::size_t element_nbytes) {
  return make_block_pair(sizes, dense_strides(sizes), dst_strides, element_nbytes);
}

void copy_on_host(const BlockPair& pair, void* dst, const void* src) {
  if (pair.element_count == 0) return;
  auto* to = static_cast<std::byte*>(dst);
  const auto* from = static_cast<const std::byte*>(src);
  if (pair.ndim == 0) {
    std::memcpy(to, from, pair.element_nbytes);
    return;
  }
  copy_dimension(pair, 0, to, from);
}

}  // namespace staging
