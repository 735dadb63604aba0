// How a wait notices that the user pressed Ctrl-C.
//
// Owner: the host language installs the check once (the bindings, at import of the
//   extension). Thread-safety: install before waiting; check from any thread.
#pragma once

#include <atomic>

namespace staging {

// Thrown out of a wait. The host language's own exception is pending when it is.
class Interrupted {};

// Returns true where the thread should stop waiting. May take the GIL: never call it
// under a lock.
using InterruptCheck = bool (*)();

inline std::atomic<InterruptCheck> interrupt_check{nullptr};

inline void throw_if_interrupted() {
  const InterruptCheck check = interrupt_check.load(std::memory_order_relaxed);
  if (check != nullptr && check()) throw Interrupted{};
}

}  // namespace staging
