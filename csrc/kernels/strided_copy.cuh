// The body of strided_copy_kernel. See strided_copy.h.
#pragma once

#include "kernels/kernel.h"
#include "kernels/strided_copy.h"

namespace staging::kernels {

struct alignas(16) Bytes16 {
  std::uint64_t lo, hi;
};

template <typename Element>
STAGING_DEVICE void copy_element(unsigned char* dst, const unsigned char* src) {
  *reinterpret_cast<Element*>(dst) = *reinterpret_cast<const Element*>(src);
}

STAGING_KERNEL void strided_copy_kernel(StridedCopyParams params) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < params.element_count; i += step) {
    std::int64_t rest = i;
    std::int64_t src_offset = 0;
    std::int64_t dst_offset = 0;
    for (int d = params.ndim - 1; d >= 0; --d) {
      const std::int64_t index = rest % params.sizes[d];
      rest /= params.sizes[d];
      src_offset += index * params.src_strides_nbytes[d];
      dst_offset += index * params.dst_strides_nbytes[d];
    }
    unsigned char* dst = params.dst + dst_offset;
    const unsigned char* src = params.src + src_offset;
    switch (params.element_nbytes) {
      case 16:
        copy_element<Bytes16>(dst, src);
        break;
      case 8:
        copy_element<std::uint64_t>(dst, src);
        break;
      case 4:
        copy_element<std::uint32_t>(dst, src);
        break;
      case 2:
        copy_element<std::uint16_t>(dst, src);
        break;
      default:
        copy_element<std::uint8_t>(dst, src);
        break;
    }
  }
}

}  // namespace staging::kernels
