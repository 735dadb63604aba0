// The CUDA implementation of the seam.
#pragma once

#include <memory>

#include "runtime/runtime.h"

namespace staging {

// Null where there is nothing to run on: no CUDA in this build, no driver, no device. The
// error that said so has been consumed. Initialises the driver (cuInit), no context.
std::unique_ptr<Runtime> make_cuda_runtime();

}  // namespace staging
