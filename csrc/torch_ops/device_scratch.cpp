#include "torch_ops/device_scratch.h"

#if defined(STAGING_WITH_CUDA)
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#endif

namespace staging::torch_ops {

DeviceScratch::DeviceScratch(StreamRef stream, std::size_t nbytes) {
#if defined(STAGING_WITH_CUDA)
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(stream.device));
  data_ = c10::cuda::CUDACachingAllocator::raw_alloc_with_stream(
      nbytes, static_cast<cudaStream_t>(stream.handle));
#else
  (void)stream, (void)nbytes;
#endif
}

DeviceScratch::~DeviceScratch() {
#if defined(STAGING_WITH_CUDA)
  if (data_ != nullptr) c10::cuda::CUDACachingAllocator::raw_delete(data_);
#endif
}

}  // namespace staging::torch_ops
