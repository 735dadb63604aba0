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

}  // namespace staging::bindings
