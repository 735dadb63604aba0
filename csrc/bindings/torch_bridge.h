// Between Python's tensors and the core's: the only place that needs PyTorch's Python headers.
#pragma once

#include <ATen/core/TensorBase.h>
#include <pybind11/pybind11.h>

#include <optional>

#include "stream/stream_ref.h"

namespace staging::bindings {

// The tensor behind a Python object; TypeError that names the argument where it is none.
const at::TensorBase& unpack_tensor(pybind11::handle object, const char* name);
pybind11::object wrap_tensor(const at::TensorBase& tensor);

// A stream argument: None, or anything with `cuda_stream` (torch.cuda.Stream). ValueError
// where it belongs to another device than `device`.
std::optional<StreamRef> stream_argument(pybind11::handle stream, int device);

// The streams on which the calls of one object use its device tensor. The tensor's allocator is
// told of a stream once, when a call changes to it: it remembers it until it frees the memory.
// Needs the GIL.
class TensorStreams {
 public:
  explicit TensorStreams(const at::TensorBase& tensor);
  // The stream of a call: `stream`, or the current one of the tensor's device. None where the
  // tensor is on the host.
  StreamRef of(pybind11::handle stream);
  // That of the last call; at first the one that was current when this was made.
  StreamRef last() const noexcept { return known_; }

 private:
  const at::TensorBase tensor_;
  StreamRef known_;
};

}  // namespace staging::bindings
