// A tensor's bytes, copied to the host.
//
// Owner: the copy owns its memory. Thread-safety: from any thread.
#pragma once

#include <ATen/core/TensorBase.h>

#include "memory/host_bytes.h"

namespace staging::torch_ops {

// The bytes in logical order. A host tensor may have any strides, and be a lazy conjugate or
// negative view of floating-point or complex numbers. A device tensor must be contiguous; it
// comes through a few megabytes of pinned memory on its current stream, and has arrived when
// this returns: nothing else on the device is waited for. Call without the GIL. Throws
// StateError where that stream captures a graph, and Interrupted.
HostBytes copy_bytes(const at::TensorBase& tensor);

}  // namespace staging::torch_ops
