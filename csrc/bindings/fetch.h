// A fetch as a Python object, and what Python does with any.
#pragma once

#include <ATen/core/TensorBase.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "transfer/completion_queue.h"
#include "transfer/fetch.h"

namespace staging::bindings {

// staging.Fetch holds one of these. The tensor's memory is the pool's: it is not reused before
// the copy is done, whoever drops it.
struct FetchHandle {
  at::TensorBase tensor;
  Fetch fetch;
};

// Blocks until it is done, without the GIL; false where `timeout`, in seconds, passed first.
bool wait_for(const Fetch& fetch, std::optional<double> timeout);
// Pushes `token` to `queue` when it is done.
void notify(const Fetch& fetch, std::shared_ptr<CompletionQueue> queue, std::uint64_t token);

}  // namespace staging::bindings
