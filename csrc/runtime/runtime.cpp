#include "runtime/runtime.h"

#include <pthread.h>

#include <memory>
#include <mutex>

#include "runtime/cuda_runtime.h"
#include "runtime/host_runtime.h"
#include "support/error.h"

namespace staging {

std::atomic<bool> Runtime::forked_{false};

// The state behind Runtime::get().
struct RuntimeChoice {
  static inline std::atomic<Runtime*> override_{nullptr};
  static inline std::atomic<Runtime*> chosen{nullptr};
  static inline std::mutex mutex;

  static void mark_forked() { Runtime::forked_.store(true, std::memory_order_relaxed); }

  static Runtime& choose() {
    const std::lock_guard<std::mutex> lock(mutex);
    if (Runtime* runtime = chosen.load(std::memory_order_acquire)) return *runtime;
    // Never destroyed, see the header.
    Runtime* runtime = make_cuda_runtime().release();
    if (runtime != nullptr) {
      pthread_atfork(nullptr, nullptr, &mark_forked);
    } else {
      runtime = new HostRuntime();
    }
    chosen.store(runtime, std::memory_order_release);
    return *runtime;
  }
};

Runtime::~Runtime() {
  delete lost_.load();
}

void Runtime::check_context() const {
  if (const DeviceError* error = lost_.load(std::memory_order_acquire)) throw DeviceError(*error);
}

void Runtime::lose_context(const DeviceError& error) {
  const auto* kept = new DeviceError(error);
  const DeviceError* none = nullptr;
  if (!lost_.compare_exchange_strong(none, kept, std::memory_order_acq_rel)) delete kept;
}

Runtime& Runtime::get() {
  if (Runtime* runtime = RuntimeChoice::override_.load(std::memory_order_acquire)) return *runtime;
  check_not_forked();
  if (Runtime* runtime = RuntimeChoice::chosen.load(std::memory_order_acquire)) return *runtime;
  return RuntimeChoice::choose();
}

bool Runtime::chosen() noexcept {
  return RuntimeChoice::chosen.load(std::memory_order_acquire) != nullptr;
}

void Runtime::throw_forked() {
  throw StateError(
      "CUDA was initialised before this process was forked, and its state cannot be used in the "
      "child. Start the child with the 'spawn' method (or fork before CUDA is used)");
}

RuntimeOverride::RuntimeOverride(Runtime& runtime) noexcept
    : previous_(RuntimeChoice::override_.exchange(&runtime)) {}

RuntimeOverride::~RuntimeOverride() {
  RuntimeChoice::override_.store(previous_);
}

}  // namespace staging
