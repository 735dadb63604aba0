// Everything that is simulated, under one lock.
//
// Purpose: ties the parts together and holds what they have in common: which stream a
//   handle means, whether a call is legal under a capture, what happens before memory goes.
// Owner: the process; made on first use and never destroyed. Thread-safety: `mutex` guards
//   every member that is not said to have a lock of its own. Entry points take it first.
#pragma once

#include <cuda_runtime_api.h>

#include <mutex>
#include <string>

#include "sim/call.h"
#include "sim/capture.h"
#include "sim/config.h"
#include "sim/device.h"
#include "sim/engine.h"
#include "sim/event.h"
#include "sim/graph.h"
#include "sim/handle_pool.h"
#include "sim/memory.h"
#include "sim/stream.h"

namespace staging::sim {

class Machine {
 public:
  static Machine& get() {
    static Machine& machine = *new Machine;
    return machine;
  }
  // Without making it.
  static bool exists() noexcept { return exists_; }

  // -- devices ---------------------------------------------------------------------------
  int device_count() const noexcept { return config().device_count; }
  bool valid_device(int device) const noexcept { return device >= 0 && device < device_count(); }
  Device& device(int index) noexcept { return devices_[index]; }
  Device& current() noexcept { return devices_[thread_state.device]; }
  // What a call does that initialises the primary context of the current device.
  void activate(int device);

  // -- streams and events ----------------------------------------------------------------
  // The stream that a handle means on this thread; null where it means none.
  Stream* resolve(cudaStream_t handle);
  Stream* create_stream(Stream::Role role, int device, unsigned flags, int priority);
  // The null, legacy and per-thread streams are not handles.
  static Stream* stream_handle(cudaStream_t handle) noexcept {
    Stream* const stream = HandlePool<Stream>::find(handle);
    return stream == nullptr || stream->destroyed ? nullptr : stream;
  }
  static Event* event_handle(cudaEvent_t handle) noexcept {
    Event* const event = HandlePool<Event>::find(handle);
    return event == nullptr || event->destroyed ? nullptr : event;
  }
  void record_event(Lock& lock, Event& event, Stream& stream, cudaError_t fault);

  // -- work ------------------------------------------------------------------------------
  // Whether work may go into the stream now: CUDA's capture errors.
  cudaError_t check_enqueue(Stream& stream);
  // Runs, enqueues or captures.
  template <typename SomeWork>
  cudaError_t issue(Lock& lock, const Call& call, Stream& stream, SomeWork&& work,
                    cudaGraphNodeType type) {
    if (stream.capture != nullptr || captures.any()) [[unlikely]] {
      if (const cudaError_t error = check_enqueue(stream); error != cudaSuccess) return error;
      if (stream.capture != nullptr) {
        captures.add(stream, type,
                     std::make_shared<const std::decay_t<SomeWork>>(std::forward<SomeWork>(work)));
        return cudaSuccess;
      }
    }
    engine.submit(lock, stream, std::forward<SomeWork>(work), call.deferred());
    return engine.lost();
  }

  // Reports memory that is freed while work uses it, and then waits for the device.
  void before_free(Lock& lock, const Allocation& allocation, const char* call);

  // -- errors ----------------------------------------------------------------------------
  cudaError_t lost() noexcept { return engine.lost(); }
  void lose(cudaError_t error);

  std::mutex mutex;
  Engine engine{mutex};
  Memory memory{config().capacity};
  Captures captures;
  HandlePool<Stream> streams;
  HandlePool<Event> events;
  Graphs graphs;
  std::uint64_t event_handles = 0;  // alive, as the program sees it
  std::uint64_t stream_handles = 0;

 private:
  Machine();

  static inline bool exists_ = false;
  Device devices_[kMaxDevices];
  std::uint64_t next_stream_id_ = 1;
};

// The usual frame of an entry point: counted, refused where it must be, under the lock.
template <typename Body>
inline cudaError_t locked_call(CallId id, Body&& body) {
  return runtime_call(id, [&](Call& call) {
    Machine& machine = Machine::get();
    Lock lock(machine.mutex);
    return body(call, machine, lock);
  });
}

}  // namespace staging::sim
