#include "kernels/segmented_copy.cuh"

#include <cuda_runtime_api.h>

STAGING_CUDA_STUB(segmented_copy_small)
STAGING_CUDA_STUB(segmented_copy_medium)
STAGING_CUDA_STUB(segmented_copy_large)

namespace staging::kernels {
std::size_t segmented_copy_max_param_nbytes() noexcept {
  // Large parameters need a driver of CUDA 12.1. A toolkit of CUDA 12 runs on older ones.
  return CUDART_VERSION >= 13000 ? 32764 : 4096;
}
}  // namespace staging::kernels
