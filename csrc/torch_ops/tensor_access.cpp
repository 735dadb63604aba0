#include "torch_ops/tensor_access.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CPUAllocator.h>

#include <memory>

#include "support/error.h"

#if defined(STAGING_WITH_CUDA)
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace staging::torch_ops {

#if defined(STAGING_WITH_CUDA)
namespace {
c10::cuda::CUDAStream torch_stream(StreamRef ref) {
  return c10::cuda::getStreamFromExternal(static_cast<cudaStream_t>(ref.handle),
                                          static_cast<c10::DeviceIndex>(ref.device));
}
}  // namespace
#endif

StreamRef current_stream(int device) {
#if defined(STAGING_WITH_CUDA)
  const c10::cuda::CUDAStream stream =
      c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device));
  return {device, stream.stream()};
#else
  return {device, nullptr};
#endif
}

at::TensorBase prefix_view(const at::TensorBase& base, std::int64_t n) {
  const c10::TensorImpl& from = *base.unsafeGetTensorImpl();
  auto impl = c10::make_intrusive<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(from.storage()), from.key_set(), from.dtype());
  c10::SmallVector<std::int64_t, 5> sizes(from.sizes().begin(), from.sizes().end());
  sizes[0] = n;
  impl->set_sizes_and_strides(sizes, from.strides(), from.storage_offset());
  impl->set_version_counter(from.version_counter());
  return at::TensorBase(
      c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>(std::move(impl)));
}

bool is_pinned(const at::TensorBase& host_tensor, DeviceContext& context) {
  if (context.runtime().backend() == Backend::kHost) return false;
  const c10::Storage& storage = host_tensor.storage();
  if (storage.data() == nullptr) return false;
  if (storage.allocator() == at::getHostAllocator(at::kCUDA)) return true;
  return context.runtime().pointer_info(storage.data()).kind == MemoryKind::kPinned;
}

bool detail::record_with_allocator(const at::TensorBase& tensor, StreamRef stream) {
#if defined(STAGING_WITH_CUDA)
  // It looks the block up, and says no where it is not one of its own.
  const c10::DataPtr& data = tensor.storage().data_ptr();
  return at::getHostAllocator(at::kCUDA)->record_event(data.get(), data.get_context(),
                                                       torch_stream(stream).unwrap());
#else
  (void)tensor, (void)stream;
  return false;
#endif
}

void detail::retain_in_graph(const at::TensorBase& tensor, StreamRef stream,
                             DeviceContext& context) {
  context.retain_in_graph(stream, std::make_shared<c10::Storage>(tensor.storage()));
}

void keep_device_memory(const at::TensorBase& tensor, StreamRef stream) {
#if defined(STAGING_WITH_CUDA)
  c10::cuda::CUDACachingAllocator::recordStream(tensor.storage().data_ptr(), torch_stream(stream));
#else
  (void)tensor, (void)stream;
#endif
}

void retain_until(DeviceContext& context, const at::TensorBase& tensor, EventFrontier users) {
  context.retain(std::make_shared<c10::Storage>(tensor.storage()), std::move(users));
}

}  // namespace staging::torch_ops
