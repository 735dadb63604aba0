// What a user should be told though the call succeeds.
//
// Owner: the host language installs the hook once (the bindings, at import of the
//   extension). Thread-safety: from any thread; never log under a lock, the hook takes the GIL.
#pragma once

#include <atomic>

namespace staging {

using LogHook = void (*)(const char* message) noexcept;
inline std::atomic<LogHook> log_hook{nullptr};

// Says `message` the first time that it is called with this flag.
inline void log_once(std::atomic_flag& said, const char* message) noexcept {
  if (said.test_and_set(std::memory_order_relaxed)) return;
  if (const LogHook hook = log_hook.load(std::memory_order_relaxed)) hook(message);
}

}  // namespace staging
