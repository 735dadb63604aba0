// The bodies of the segmented_copy kernels. See segmented_copy.h.
#pragma once

#include "kernels/byte_copy.cuh"
#include "kernels/segmented_copy.h"

namespace staging::kernels {

template <typename Params>
STAGING_DEVICE void segmented_copy_body(const Params& params) {
  // The segment of this block: the last one that does not begin behind it.
  std::uint32_t segment = 0;
  for (std::uint32_t above = params.count; above - segment > 1;) {
    const std::uint32_t middle = segment + (above - segment) / 2;
    if (params.first_block[middle] <= blockIdx.x) {
      segment = middle;
    } else {
      above = middle;
    }
  }
  const std::uint32_t first = params.first_block[segment];
  const std::uint32_t blocks = params.first_block[segment + 1] - first;
  const CopySegment& copy = params.segments[segment];
  copy_bytes(copy.dst, copy.src, copy.nbytes,
             static_cast<std::uint64_t>(blockIdx.x - first) * blockDim.x + threadIdx.x,
             static_cast<std::uint64_t>(blocks) * blockDim.x);
}

STAGING_KERNEL void segmented_copy_small_kernel(STAGING_PARAMS(SegmentedCopySmall) params) {
  segmented_copy_body(params);
}
STAGING_KERNEL void segmented_copy_medium_kernel(STAGING_PARAMS(SegmentedCopyMedium) params) {
  segmented_copy_body(params);
}
STAGING_KERNEL void segmented_copy_large_kernel(STAGING_PARAMS(SegmentedCopyLarge) params) {
  segmented_copy_body(params);
}

}  // namespace staging::kernels
