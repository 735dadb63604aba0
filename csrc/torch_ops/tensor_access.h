// What the core needs to know of PyTorch: streams, pinned blocks, views, lifetimes.
//
// Owner: nothing of its own. Thread-safety: each function may be called from any thread.
#pragma once

#include <ATen/core/TensorBase.h>
#include <c10/util/SmallVector.h>

#include "memory/pinned_pool.h"
#include "transfer/device_context.h"

namespace staging::torch_ops {

// The current stream of a CUDA device. Makes no runtime call, unless the stream is one that
// PyTorch did not make.
StreamRef current_stream(int device);

// A stream of a device, by its handle. `from_torch`: one of PyTorch's own, which live as long
// as the process. Throws InvalidArgument for a handle that stands for a stream of each thread.
StreamRef stream_ref(int device, StreamHandle handle, bool from_torch);

// base[:n] along dimension 0 for 0 <= n <= size(0), made directly: the same storage and
// version counter. Autograd does not see it: for tensors that do not require a gradient.
at::TensorBase prefix_view(const at::TensorBase& base, std::int64_t n);

// A new tensor on the host, uninitialised: of ordinary memory, and of a block of the pinned
// pool, which is released with the tensor's storage.
at::TensorBase host_tensor(c10::IntArrayRef sizes, c10::ScalarType dtype);
at::TensorBase tensor_of_block(PinnedBlock block, c10::IntArrayRef sizes, c10::ScalarType dtype);

// Whether `nbytes` of a host tensor, from `begin`, are pinned. Known without a runtime call for
// PyTorch's own allocator; else a pointer query for each end.
bool is_pinned(const at::TensorBase& host_tensor, const void* begin, std::size_t nbytes,
               DeviceContext& context);

// The memory of tensors that an operation on a stream uses, which must stay alive and unused
// by others until the operation is done, whatever becomes of the tensors.
//
// Where the allocator of the memory can be told (record_stream for device memory, record_event
// for pinned memory), it is; else the storage is held until an event behind the operation is
// complete. Under capture the graph holds the storages, but for memory of PyTorch's device
// allocator, which is the caller's to keep, as under any captured operation.
class MemoryUse {
 public:
  MemoryUse(DeviceContext& context, StreamRef stream, bool capturing) noexcept
      : context_(context), stream_(stream), capturing_(capturing) {}
  MemoryUse(const MemoryUse&) = delete;  // one operation
  MemoryUse& operator=(const MemoryUse&) = delete;

  // Before the operation is enqueued. What a graph must hold, it holds from here on.
  void device(const at::TensorBase& tensor);
  void host(const at::TensorBase& tensor);
  // Behind it. Where the memory cannot be protected it waits for the stream, and throws.
  void enqueued();
  // The same, also where the allocators have been told: the event, not null.
  Event recorded();
  // The operation failed half-way: waits for the stream, or keeps the memory for ever.
  void failed() noexcept;
  // Whether it had to do the latter: the operation may run yet.
  bool lost() const noexcept { return lost_; }

 private:
  void hold(const at::TensorBase& tensor);

  DeviceContext& context_;
  const StreamRef stream_;
  const bool capturing_;
  bool lost_ = false;
  c10::SmallVector<at::TensorBase, 2> host_;
  c10::SmallVector<c10::Storage, 2> held_;
};

// Tells the allocator of a device tensor that `stream` uses it (record_stream). False where it
// cannot be told of this use: somebody else must keep the memory.
bool keep_device_memory(const at::TensorBase& tensor, StreamRef stream);

}  // namespace staging::torch_ops
