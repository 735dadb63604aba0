// Makes a device current for the length of a scope, and restores what was.
//
// Owner: the scope. Thread-safety: the current device is a property of the thread.
#pragma once

#include <atomic>

#include "runtime/runtime.h"

namespace staging {

// A framework that has its own idea of the current device. cudaSetDevice makes a context (since
// CUDA 12), so PyTorch only remembers a device that has none yet. To restore such a device with
// cudaSetDevice would make a context that nobody asked for; the framework is told instead.
struct DeviceHooks {
  // The framework's current device.
  int (*current)();
  // Restores `current`, the framework's idea, without making a context on `raw`, the runtime's
  // device. False where `raw` has a context: then the runtime's is restored as usual.
  bool (*restore)(int raw, int current);
};

// Installed once, by the bindings.
inline std::atomic<const DeviceHooks*> device_hooks{nullptr};

class DeviceScope {
 public:
  // One current_device() call; set_device() only where the device differs.
  DeviceScope(Runtime& runtime, int device)
      : runtime_(runtime), previous_(runtime.current_device()) {
    if (device < 0 || previous_ == device) return;
    if (const DeviceHooks* hooks = device_hooks.load(std::memory_order_relaxed)) {
      framework_ = hooks->current();
    }
    runtime.set_device(device);
    switched_ = true;
  }
  DeviceScope(const DeviceScope&) = delete;  // restores once
  DeviceScope& operator=(const DeviceScope&) = delete;
  ~DeviceScope() {
    if (!switched_) return;
    try {
      const DeviceHooks* hooks = device_hooks.load(std::memory_order_relaxed);
      if (hooks != nullptr && hooks->restore(previous_, framework_)) return;
      runtime_.set_device(previous_);
    } catch (...) {  // the context is lost: every later call says so
    }
  }

 private:
  Runtime& runtime_;
  const int previous_;
  int framework_ = -1;
  bool switched_ = false;
};

}  // namespace staging
