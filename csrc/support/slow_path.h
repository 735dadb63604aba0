// What is slower, or less asynchronous, than it looks; and who is told.
//
// Purpose: strict mode. A call that would take a slow path says so before it does anything:
//   in strict mode it throws, else a hook may warn.
// Owner: the host language installs the hook once. Thread-safety: from any thread; never
//   report under a lock, the hook takes the GIL.
#pragma once

#include <atomic>

#include "support/error.h"

namespace staging {

// All three are part of a sentence: "<argument> <problem>; <remedy>". One static object for
// each slow path: its address is its identity.
struct SlowPath {
  const char* argument;
  const char* problem;
  const char* remedy;
};

// A call refused by strict mode; nothing was done.
class StrictViolation : public Error {
 public:
  using Error::Error;
};

inline std::atomic<bool> strict_mode{false};

// May throw the host language's own exception (a warning that was turned into an error).
using SlowPathHook = void (*)(const SlowPath& path);
inline std::atomic<SlowPathHook> slow_path_hook{nullptr};

inline std::string describe(const SlowPath& path) {
  return detail::join_message(path.argument, " ", path.problem, "; ", path.remedy);
}

inline void report_slow_path(const SlowPath& path) {
  if (strict_mode.load(std::memory_order_relaxed)) {
    throw StrictViolation(describe(path) + " (strict mode)");
  }
  if (const SlowPathHook hook = slow_path_hook.load(std::memory_order_relaxed)) hook(path);
}

}  // namespace staging
