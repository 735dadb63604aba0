// What every entry point does first and last.
//
// Purpose: counts the call, lets injected faults, a lost context or an inherited one take
//   effect, keeps the thread's last error and records the call when asked to. In the usual
//   case that is one atomic increment and one load.
// Owner: lives for the call. Thread-safety: its thread only; Attention is atomic.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>

#include "sim/calls.h"
#include "sim/counters.h"
#include "sim/thread_state.h"

namespace staging::sim {

// Why a call must look twice. All bits clear: it need not.
class Attention {
 public:
  enum Bit : unsigned {
    kFaults = 1,     // a fault is armed
    kRecording = 2,  // calls are recorded
    kLost = 4,       // the context was destroyed by an error
    kForked = 8,     // a child of a process that had initialised the devices
  };

  static void set(Bit bit, bool on) noexcept {
    if (on) {
      bits_.fetch_or(bit, std::memory_order_relaxed);
    } else {
      bits_.fetch_and(~static_cast<unsigned>(bit), std::memory_order_relaxed);
    }
  }
  static unsigned bits() noexcept { return bits_.load(std::memory_order_relaxed); }

 private:
  static inline constinit std::atomic<unsigned> bits_{0};
};

class Call {
 public:
  explicit Call(CallId id) noexcept : id_(id) {
    Counters::add(id);
    if (Attention::bits() != 0 || thread_state.in_callback) [[unlikely]]
      refused_ = inspect();
  }
  Call(const Call&) = delete;  // one per call
  Call& operator=(const Call&) = delete;

  // Not success: the call fails with this and does nothing.
  cudaError_t refused() const noexcept { return refused_; }
  // Not success: the work that the call enqueues fails with this when it runs.
  cudaError_t deferred() const noexcept { return deferred_; }

  // For the record.
  void note(cudaStream_t stream, std::uint64_t nbytes = 0, int kind = -1) noexcept {
    stream_ = reinterpret_cast<std::uintptr_t>(stream);
    nbytes_ = nbytes;
    kind_ = kind;
  }

  cudaError_t finish(cudaError_t result) noexcept {
    // "Not ready" is an answer of the query calls, and no error that cudaGetLastError() reports
    // (CUDA C++ Programming Guide, Error Checking).
    if (result != cudaSuccess && result != cudaErrorNotReady) thread_state.last_error = result;
    if (Attention::bits() & Attention::kRecording) [[unlikely]]
      record(result);
    return result;
  }

 private:
  cudaError_t inspect() noexcept;
  void record(cudaError_t result) noexcept;

  CallId id_;
  cudaError_t refused_ = cudaSuccess;
  cudaError_t deferred_ = cudaSuccess;
  std::uintptr_t stream_ = 0;
  std::uint64_t nbytes_ = 0;
  int kind_ = -1;
};

// An entry point: `body(call)` does the work and returns the result.
template <typename Body>
inline cudaError_t runtime_call(CallId id, Body&& body) {
  Call call(id);
  if (call.refused() != cudaSuccess) [[unlikely]]
    return call.finish(call.refused());
  return call.finish(body(call));
}

}  // namespace staging::sim
