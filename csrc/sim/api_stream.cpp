// Entry points: streams and host functions.
#include <cuda_runtime_api.h>

#include "sim/host_function.h"
#include "sim/machine.h"

using namespace staging::sim;

namespace {

cudaError_t create(CallId id, cudaStream_t* out, unsigned flags, int priority) {
  return locked_call(id, [&](Call&, Machine& machine, Lock&) {
    if (out == nullptr || (flags & ~static_cast<unsigned>(cudaStreamNonBlocking)) != 0) {
      return cudaErrorInvalidValue;
    }
    if (machine.device_count() == 0) return cudaErrorNoDevice;
    machine.activate(thread_state.device);
    priority = priority > 0 ? 0 : priority < -5 ? -5 : priority;
    Stream* const stream =
        machine.create_stream(Stream::Role::kUser, thread_state.device, flags, priority);
    ++machine.stream_handles;
    *out = reinterpret_cast<cudaStream_t>(stream);
    return cudaSuccess;
  });
}

// Waiting for a stream, or asking about it, conflicts with its capture and breaks it.
cudaError_t check_wait(Machine& machine, Stream& stream) {
  if (stream.capture != nullptr) {
    machine.captures.invalidate(*stream.capture);
    return cudaErrorStreamCaptureUnsupported;
  }
  if (!machine.captures.any()) return cudaSuccess;
  if (stream.role == Stream::Role::kLegacy) {
    const cudaError_t error = machine.captures.check_legacy(stream.device, /*invalidates=*/true);
    if (error != cudaSuccess) return error;
  }
  return machine.captures.check_unsafe_call();
}

template <typename Body>
cudaError_t with_stream(CallId id, cudaStream_t handle, Body&& body) {
  return locked_call(id, [&](Call& call, Machine& machine, Lock& lock) {
    call.note(handle);
    if (machine.device_count() == 0) return cudaErrorNoDevice;
    Stream* const stream = machine.resolve(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    return body(call, machine, lock, *stream);
  });
}

}  // namespace

extern "C" {

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return create(CallId::cudaStreamCreate, stream, cudaStreamDefault, 0);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return create(CallId::cudaStreamCreateWithFlags, stream, flags, 0);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  return create(CallId::cudaStreamCreateWithPriority, stream, flags, priority);
}

// Work that is left runs all the same.
cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  return locked_call(CallId::cudaStreamDestroy, [&](Call& call, Machine& machine, Lock&) {
    call.note(handle);
    Stream* const stream = Machine::stream_handle(handle);
    if (stream == nullptr || stream->role != Stream::Role::kUser) {
      return cudaErrorInvalidResourceHandle;
    }
    if (stream->capture != nullptr) machine.captures.invalidate(*stream->capture);
    stream->destroyed = true;
    --machine.stream_handles;
    if (--stream->references == 0) Stream::unreferenced(stream);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  return with_stream(CallId::cudaStreamSynchronize, handle,
                     [](Call&, Machine& machine, Lock& lock, Stream& stream) {
                       if (const cudaError_t error = check_wait(machine, stream);
                           error != cudaSuccess) {
                         return error;
                       }
                       machine.engine.wait(lock, stream.tail());
                       return machine.lost();
                     });
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  return with_stream(
      CallId::cudaStreamQuery, handle, [](Call&, Machine& machine, Lock& lock, Stream& stream) {
        if (const cudaError_t error = check_wait(machine, stream); error != cudaSuccess) {
          return error;
        }
        if (stream.idle()) return machine.lost();
        machine.engine.polled(lock, stream.tail());
        return machine.lost() != cudaSuccess ? machine.lost() : cudaErrorNotReady;
      });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle, unsigned flags) {
  return with_stream(CallId::cudaStreamWaitEvent, handle,
                     [&](Call&, Machine& machine, Lock& lock, Stream& stream) {
                       Event* const event = Machine::event_handle(event_handle);
                       if (event == nullptr) return cudaErrorInvalidResourceHandle;
                       const bool external = flags == cudaEventWaitExternal;
                       if (flags != cudaEventWaitDefault && !external) return cudaErrorInvalidValue;
                       if (const cudaError_t error = machine.check_enqueue(stream);
                           error != cudaSuccess) {
                         return error;
                       }
                       if (stream.capture != nullptr && external) {
                         machine.captures.add(stream, cudaGraphNodeTypeWaitEvent, nullptr).event =
                             Ref<Event>(event);
                         return cudaSuccess;
                       }
                       if (external) return cudaErrorInvalidValue;
                       if (event->capture_id != 0) return machine.captures.join(stream, *event);
                       if (stream.capture != nullptr) {
                         // Work outside of the capture: the graph could not wait for it at each
                         // launch. An event that was never recorded stands for no work.
                         if (!event->recorded) return cudaSuccess;
                         machine.captures.invalidate(*stream.capture);
                         return cudaErrorStreamCaptureIsolation;
                       }
                       machine.engine.wait_in_stream(lock, stream, event->mark);
                       return machine.lost();
                     });
}

cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned* flags) {
  return with_stream(CallId::cudaStreamGetFlags, handle,
                     [&](Call&, Machine&, Lock&, Stream& stream) {
                       if (flags == nullptr) return cudaErrorInvalidValue;
                       *flags = stream.flags;
                       return cudaSuccess;
                     });
}

cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
  return with_stream(CallId::cudaStreamGetPriority, handle,
                     [&](Call&, Machine&, Lock&, Stream& stream) {
                       if (priority == nullptr) return cudaErrorInvalidValue;
                       *priority = stream.priority;
                       return cudaSuccess;
                     });
}

cudaError_t cudaStreamGetDevice(cudaStream_t handle, int* device) {
  return with_stream(CallId::cudaStreamGetDevice, handle,
                     [&](Call&, Machine&, Lock&, Stream& stream) {
                       if (device == nullptr) return cudaErrorInvalidValue;
                       *device = stream.device;
                       return cudaSuccess;
                     });
}

cudaError_t cudaStreamGetId(cudaStream_t handle, unsigned long long* id) {
  return with_stream(CallId::cudaStreamGetId, handle, [&](Call&, Machine&, Lock&, Stream& stream) {
    if (id == nullptr) return cudaErrorInvalidValue;
    *id = stream.id;
    return cudaSuccess;
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* argument) {
  return with_stream(CallId::cudaLaunchHostFunc, handle,
                     [&](Call& call, Machine& machine, Lock& lock, Stream& stream) {
                       if (function == nullptr) return cudaErrorInvalidValue;
                       return machine.issue(lock, call, stream,
                                            HostFunctionWork(function, argument),
                                            cudaGraphNodeTypeHost);
                     });
}

// Unlike host functions these cannot be captured, and they are told of errors.
cudaError_t cudaStreamAddCallback(cudaStream_t handle, cudaStreamCallback_t callback, void* data,
                                  unsigned flags) {
  return with_stream(CallId::cudaStreamAddCallback, handle,
                     [&](Call& call, Machine& machine, Lock& lock, Stream& stream) {
                       if (callback == nullptr || flags != 0) return cudaErrorInvalidValue;
                       if (stream.capture != nullptr) {
                         machine.captures.invalidate(*stream.capture);
                         return cudaErrorStreamCaptureUnsupported;
                       }
                       return machine.issue(lock, call, stream,
                                            StreamCallbackWork(callback, handle, data),
                                            cudaGraphNodeTypeHost);
                     });
}

}  // extern "C"
