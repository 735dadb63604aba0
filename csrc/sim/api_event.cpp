// Entry points: events.
#include <cuda_runtime_api.h>

#include "sim/machine.h"

using namespace staging::sim;

namespace {

cudaError_t create(CallId id, cudaEvent_t* out, unsigned flags) {
  return locked_call(id, [&](Call&, Machine& machine, Lock&) {
    constexpr unsigned kKnown =
        cudaEventBlockingSync | cudaEventDisableTiming | cudaEventInterprocess;
    if (out == nullptr || (flags & ~kKnown) != 0) return cudaErrorInvalidValue;
    if ((flags & cudaEventInterprocess) != 0 && (flags & cudaEventDisableTiming) == 0) {
      return cudaErrorInvalidValue;
    }
    if (machine.device_count() == 0) return cudaErrorNoDevice;
    machine.activate(thread_state.device);
    Event* const event = machine.events.create(thread_state.device, flags);
    ++event->references;
    ++machine.event_handles;
    *out = reinterpret_cast<cudaEvent_t>(event);
    return cudaSuccess;
  });
}

cudaError_t record(CallId id, cudaEvent_t event_handle, cudaStream_t handle, unsigned flags) {
  return locked_call(id, [&](Call& call, Machine& machine, Lock& lock) {
    call.note(handle);
    Event* const event = Machine::event_handle(event_handle);
    if (event == nullptr || machine.device_count() == 0) return cudaErrorInvalidResourceHandle;
    Stream* const stream = machine.resolve(handle);
    if (stream == nullptr || stream->device != event->device) {
      return cudaErrorInvalidResourceHandle;
    }
    const bool external = flags == cudaEventRecordExternal;
    if (flags != cudaEventRecordDefault && !external) return cudaErrorInvalidValue;
    if (stream->capture != nullptr || machine.captures.any()) [[unlikely]] {
      if (const cudaError_t error = machine.check_enqueue(*stream); error != cudaSuccess) {
        return error;
      }
    }
    if (stream->capture == nullptr) {
      if (external) return cudaErrorInvalidValue;
      machine.record_event(lock, *event, *stream, call.deferred());
      return machine.lost();
    }
    if (external) {
      machine.captures.add(*stream, cudaGraphNodeTypeEventRecord, nullptr).event =
          Ref<Event>(event);
      return cudaSuccess;
    }
    event->capture_id = stream->capture->id;
    event->capture_nodes = stream->capture_tail;
    return cudaSuccess;
  });
}

// Asking for, or waiting for, an event of a capture conflicts with it; on any other event
// it is a potentially unsafe call.
cudaError_t check_wait(Machine& machine, const Event& event) {
  if (event.capture_id != 0) {
    if (Capture* const capture = machine.captures.find(event.capture_id)) {
      machine.captures.invalidate(*capture);
    }
    return cudaErrorCapturedEvent;
  }
  return machine.captures.check_unsafe_call();
}

}  // namespace

extern "C" {

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return create(CallId::cudaEventCreate, event, cudaEventDefault);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return create(CallId::cudaEventCreateWithFlags, event, flags);
}

cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  return locked_call(CallId::cudaEventDestroy, [&](Call&, Machine& machine, Lock&) {
    Event* const event = Machine::event_handle(handle);
    if (event == nullptr) return cudaErrorInvalidResourceHandle;
    event->destroyed = true;
    --machine.event_handles;
    if (--event->references == 0) Event::unreferenced(event);
    return cudaSuccess;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return record(CallId::cudaEventRecord, event, stream, cudaEventRecordDefault);
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  return record(CallId::cudaEventRecordWithFlags, event, stream, flags);
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  return locked_call(CallId::cudaEventQuery, [&](Call&, Machine& machine, Lock& lock) {
    Event* const event = Machine::event_handle(handle);
    if (event == nullptr) return cudaErrorInvalidResourceHandle;
    if (const cudaError_t error = check_wait(machine, *event); error != cudaSuccess) return error;
    if (event->complete()) {
      event->mark = {};
      return machine.lost();
    }
    machine.engine.polled(lock, Mark(event->mark));
    return machine.lost() != cudaSuccess ? machine.lost() : cudaErrorNotReady;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  return locked_call(CallId::cudaEventSynchronize, [&](Call&, Machine& machine, Lock& lock) {
    Event* const event = Machine::event_handle(handle);
    if (event == nullptr) return cudaErrorInvalidResourceHandle;
    if (const cudaError_t error = check_wait(machine, *event); error != cudaSuccess) return error;
    machine.engine.wait(lock, Mark(event->mark));
    return machine.lost();
  });
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start_handle, cudaEvent_t end_handle) {
  return locked_call(CallId::cudaEventElapsedTime, [&](Call&, Machine&, Lock&) {
    if (ms == nullptr) return cudaErrorInvalidValue;
    const Event* const start = Machine::event_handle(start_handle);
    const Event* const end = Machine::event_handle(end_handle);
    for (const Event* event : {start, end}) {
      if (event == nullptr || !event->timed() || event->capture_id != 0 || !event->recorded) {
        return cudaErrorInvalidResourceHandle;
      }
    }
    if (start->device != end->device) return cudaErrorInvalidResourceHandle;
    if (!start->complete() || !end->complete()) return cudaErrorNotReady;
    *ms = static_cast<float>(static_cast<double>(end->completed_ns - start->completed_ns) * 1e-6);
    return cudaSuccess;
  });
}

}  // extern "C"
