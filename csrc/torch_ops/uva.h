// A device's view of a pinned host tensor.
#pragma once

#include <ATen/core/TensorBase.h>

namespace staging::torch_ops {

// A tensor on `device` that is the host tensor's own memory, with its shape and strides, and
// keeps it alive. Throws InvalidArgument where the memory is not pinned, StateError where the
// device cannot address it. Does not try whether the view is live, see transfer/host_view.h.
at::TensorBase uva_view(const at::TensorBase& pinned, int device);

}  // namespace staging::torch_ops
