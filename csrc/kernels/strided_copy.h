// Launches strided_copy_kernel. See strided_copy.cuh for the parameters.
#pragma once

#include "runtime/runtime.h"

namespace staging::kernels {

struct StridedCopyParams;

const Kernel& strided_copy() noexcept;

// Enqueues the copy on `stream`; waits for nothing. `params` is copied at launch.
void launch_strided_copy(Runtime& runtime, int device, StreamHandle stream,
                         StridedCopyParams params);

}  // namespace staging::kernels
