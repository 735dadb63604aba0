// Makes a device current for the length of a scope, and restores what was.
//
// Owner: the scope. Thread-safety: the current device is a property of the thread. In a scope
//   nobody else changes it, so a scope within one for the same device asks nothing.
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
  // One current_device() call; set_device() only where the device differs. A device of -1
  // stands for whichever is current.
  DeviceScope(Runtime& runtime, int device) : runtime_(runtime), outer_(innermost_) {
    if (device < 0) return;
    if (outer_.runtime == &runtime && outer_.device == device) return;
    previous_ = runtime.current_device();
    if (previous_ != device) {
      if (const DeviceHooks* hooks = device_hooks.load(std::memory_order_relaxed)) {
        framework_ = hooks->current();
      }
      runtime.set_device(device);
      switched_ = true;
    }
    innermost_ = {&runtime, device};
  }
  DeviceScope(const DeviceScope&) = delete;  // restores once
  DeviceScope& operator=(const DeviceScope&) = delete;
  ~DeviceScope() {
    innermost_ = outer_;
    if (!switched_) return;
    try {
      const DeviceHooks* hooks = device_hooks.load(std::memory_order_relaxed);
      if (hooks != nullptr && hooks->restore(previous_, framework_)) return;
      runtime_.set_device(previous_);
    } catch (...) {  // the context is lost: every later call says so
    }
  }

 private:
  struct Current {
    const Runtime* runtime;
    int device;
  };
  static inline thread_local Current innermost_{nullptr, -1};

  Runtime& runtime_;
  const Current outer_;
  int previous_ = -1;
  int framework_ = -1;
  bool switched_ = false;
};

}  // namespace staging
