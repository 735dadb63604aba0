// A fetch as a Python object.
#pragma once

#include <ATen/core/TensorBase.h>

#include "transfer/fetch.h"

namespace staging::bindings {

// staging.Fetch holds one of these. The tensor's memory is the pool's: it is not reused before
// the copy is done, whoever drops it.
struct FetchHandle {
  at::TensorBase tensor;
  Fetch fetch;
};

}  // namespace staging::bindings
