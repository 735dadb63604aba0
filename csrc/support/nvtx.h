// Named ranges for profilers (NVTX), where somebody asked for them.
//
// Purpose: a buffer's copies show under its name. Off, a range costs one load.
// Owner: the scope. Thread-safety: ranges belong to the thread.
#pragma once

#include <atomic>
#include <string>

namespace staging {

// Whether this build has NVTX (its headers are part of the CUDA toolkit).
bool nvtx_available() noexcept;

inline std::atomic<bool> nvtx_enabled{false};

class NvtxRange {
 public:
  // "<name>.<what>"; `what` alone where the name is empty.
  NvtxRange(const std::string& name, const char* what) {
    if (nvtx_enabled.load(std::memory_order_relaxed)) [[unlikely]] {
      push(name, what);
      active_ = true;
    }
  }
  NvtxRange(const NvtxRange&) = delete;  // ends once
  NvtxRange& operator=(const NvtxRange&) = delete;
  ~NvtxRange() {
    if (active_) [[unlikely]] {
      pop();
    }
  }

 private:
  static void push(const std::string& name, const char* what);
  static void pop() noexcept;

  bool active_ = false;
};

}  // namespace staging
