// What the core needs to know of PyTorch: streams, pinned blocks, views, lifetimes.
//
// Owner: nothing of its own. Thread-safety: each function may be called from any thread.
#pragma once

#include <ATen/core/TensorBase.h>

#include <optional>

#include "stream/event_frontier.h"
#include "transfer/device_context.h"

namespace staging::torch_ops {

// The current stream of a CUDA device. Makes no runtime call.
StreamRef current_stream(int device);

// base[:n] along dimension 0 for 0 <= n <= size(0), made directly: the same storage and
// version counter. Autograd does not see it: for tensors that do not require a gradient.
at::TensorBase prefix_view(const at::TensorBase& base, std::int64_t n);

// Whether the tensor's memory is pinned. Known without a runtime call for PyTorch's own
// allocators; else one pointer query.
bool is_pinned(const at::TensorBase& host_tensor, DeviceContext& context);

// Keeps host memory alive and unused by others until the copies on `stream` so far are done:
// by PyTorch's host allocator where the block is its own, else by holding the storage until
// `event` (recorded behind the copy) is complete. `event` is called only where it is needed.
// Where the stream captures, the graph holds the storage.
template <typename MakeEvent>
void keep_host_memory(const at::TensorBase& tensor, StreamRef stream, DeviceContext& context,
                      MakeEvent event);

// The same for device memory (record_stream). Free where the memory belongs to `stream`.
void keep_device_memory(const at::TensorBase& tensor, StreamRef stream);

// Holds the tensor's storage until `users` are complete.
void retain_until(DeviceContext& context, const at::TensorBase& tensor, EventFrontier users);

namespace detail {
bool record_with_allocator(const at::TensorBase& tensor, StreamRef stream);
void retain_in_graph(const at::TensorBase& tensor, StreamRef stream, DeviceContext& context);
}  // namespace detail

template <typename MakeEvent>
void keep_host_memory(const at::TensorBase& tensor, StreamRef stream, DeviceContext& context,
                      MakeEvent event) {
  if (context.runtime().capture_status(stream.device, stream.handle) != CaptureStatus::kNone) {
    detail::retain_in_graph(tensor, stream, context);
    return;
  }
  if (detail::record_with_allocator(tensor, stream)) return;
  EventFrontier users;
  users.add(event());
  retain_until(context, tensor, std::move(users));
}

}  // namespace staging::torch_ops
