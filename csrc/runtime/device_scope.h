// Makes a device current for the length of a scope, and restores what was.
//
// Owner: the scope. Thread-safety: the current device is a property of the thread.
#pragma once

#include "runtime/runtime.h"

namespace staging {

class DeviceScope {
 public:
  // One current_device() call; set_device() only where the device differs.
  DeviceScope(Runtime& runtime, int device)
      : runtime_(runtime), previous_(runtime.current_device()) {
    switched_ = device >= 0 && previous_ != device;
    if (switched_) runtime_.set_device(device);
  }
  DeviceScope(const DeviceScope&) = delete;  // restores once
  DeviceScope& operator=(const DeviceScope&) = delete;
  ~DeviceScope() {
    if (!switched_) return;
    try {
      runtime_.set_device(previous_);
    } catch (...) {  // the context is lost: every later call says so
    }
  }

 private:
  Runtime& runtime_;
  int previous_;
  bool switched_ = false;
};

}  // namespace staging
