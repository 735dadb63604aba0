#include "torch_ops/tensor_access.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/InferenceMode.h>

#include <cstdlib>
#include <memory>
#include <utility>

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
  // PyTorch's ids of its own streams are odd, that of the default stream is 0, and that of
  // another stream is its handle.
  const bool from_torch = stream.id() == 0 || (stream.id() & 1) != 0;
  return stream_ref(device, stream.stream(), from_torch);
#else
  return {device, nullptr};
#endif
}

StreamRef stream_ref(int device, StreamHandle handle, bool from_torch) {
  // CUDA's names for the default streams, cudaStreamLegacy and cudaStreamPerThread.
  const auto number = reinterpret_cast<std::uintptr_t>(handle);
  if (number == 1) handle = nullptr;
  STAGING_EXPECTS(number != 2,
                  "stream must be one stream, got cudaStreamPerThread, which is another one in "
                  "every thread; make a torch.cuda.Stream");
  if (handle == nullptr || from_torch) return {device, handle};
  return {device, handle, Runtime::get().stream_id(device, handle)};
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

at::TensorBase host_tensor(c10::IntArrayRef sizes, c10::ScalarType dtype) {
  return at::detail::empty_cpu(sizes, dtype);
}

at::TensorBase tensor_of_block(PinnedBlock block, c10::IntArrayRef sizes, c10::ScalarType dtype) {
  const c10::InferenceMode ordinary(false);
  const std::size_t nbytes = block.nbytes();
  void* const data = block.data();
  c10::DataPtr pointer(
      data, block.detach(), [](void* detached) { PinnedBlock::attach(detached).release(); },
      c10::Device(c10::DeviceType::CPU));
  c10::Storage storage(c10::Storage::use_byte_size_t(), nbytes, std::move(pointer),
                       /*allocator=*/nullptr, /*resizable=*/false);
  auto impl = c10::make_intrusive<c10::TensorImpl>(std::move(storage),
                                                   c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                   c10::scalarTypeToTypeMeta(dtype));
  impl->set_sizes_contiguous(sizes);
  return at::TensorBase(
      c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>(std::move(impl)));
}

bool is_pinned(const at::TensorBase& host_tensor, const void* begin, std::size_t nbytes,
               DeviceContext& context) {
  if (context.runtime().backend() == Backend::kHost || nbytes == 0) return false;
  if (host_tensor.storage().allocator() == at::getHostAllocator(at::kCUDA)) return true;
  const auto pinned = [&](const void* pointer) {
    return context.runtime().pointer_info(pointer).kind == MemoryKind::kPinned;
  };
  return pinned(begin) && pinned(static_cast<const std::byte*>(begin) + nbytes - 1);
}

bool keep_device_memory(const at::TensorBase& tensor, StreamRef stream) {
#if defined(STAGING_WITH_CUDA)
  // The allocator records an event on the stream when it frees the memory. A stream that may be
  // destroyed before that must not be known to it.
  if (stream.id != 0) return false;
  // Switched off, the allocator frees with a hidden synchronization instead.
  static const bool caching = std::getenv("PYTORCH_NO_CUDA_MEMORY_CACHING") == nullptr;
  const c10::DataPtr& data = tensor.storage().data_ptr();
  c10::cuda::CUDACachingAllocator::recordStream(data, torch_stream(stream));
  return caching && data.get_deleter() == c10::cuda::CUDACachingAllocator::get()->raw_deleter();
#else
  (void)tensor, (void)stream;
  return false;
#endif
}

void MemoryUse::hold(const at::TensorBase& tensor) {
  if (capturing_) {
    context_.retain_in_graph(stream_, std::make_shared<c10::Storage>(tensor.storage()));
  } else {
    held_.push_back(tensor.storage());
  }
}

void MemoryUse::device(const at::TensorBase& tensor) {
  if (!keep_device_memory(tensor, stream_)) hold(tensor);
}

void MemoryUse::host(const at::TensorBase& tensor) {
  capturing_ ? hold(tensor) : host_.push_back(tensor);
}

void MemoryUse::enqueued() {
  try {
#if defined(STAGING_WITH_CUDA)
    for (const at::TensorBase& tensor : host_) {
      // It looks the block up, and says no where it is not one of its own.
      const c10::DataPtr& data = tensor.storage().data_ptr();
      const bool told = at::getHostAllocator(at::kCUDA)->record_event(
          data.get(), data.get_context(), torch_stream(stream_).unwrap());
      if (!told) held_.push_back(tensor.storage());
    }
#endif
    if (!held_.empty()) recorded();
  } catch (...) {
    failed();
    throw;
  }
}

Event MemoryUse::recorded() {
  Event event;
  try {
    event = context_.events().acquire();
    event.record(stream_);
  } catch (...) {
    failed();
    throw;
  }
  for (const at::TensorBase& tensor : host_) held_.push_back(tensor.storage());
  host_.clear();
  EventFrontier users;
  users.add(event);
  using Held = c10::SmallVector<c10::Storage, 2>;
  context_.retain(std::make_shared<Held>(std::exchange(held_, {})), std::move(users));
  return event;
}

void MemoryUse::failed() noexcept {
  if (capturing_) return;
  try {
    context_.runtime().synchronize_stream(stream_.device, stream_.handle);
  } catch (...) {
    lost_ = true;
    for (const at::TensorBase& tensor : host_) held_.push_back(tensor.storage());
    for (const c10::Storage& storage : held_) {
      context_.retain_forever(std::make_shared<c10::Storage>(storage));
    }
  }
}

}  // namespace staging::torch_ops
