#include "sim/machine.h"

#include <pthread.h>

#include <cstdio>

#include "sim/call_record.h"
#include "sim/reports.h"

namespace staging::sim {

namespace {

// A child of fork() has the memory of the devices' state but none of its threads, and in
// CUDA no context: every call fails. A parent that had not initialised anything leaves its
// child free to do so.
bool forked_with_context = false;

void before_fork() {
  Machine::get().mutex.lock();
}
void after_fork_in_parent() {
  Machine::get().mutex.unlock();
}
void after_fork_in_child() {
  Machine& machine = Machine::get();
  for (int i = 0; i < kMaxDevices; ++i) forked_with_context |= machine.device(i).context_active;
  if (forked_with_context) Attention::set(Attention::kForked, true);
  machine.mutex.unlock();
}

}  // namespace

Machine::Machine() {
  Lock lock(mutex);
  engine.set_schedule(lock, Schedule::make(config().policy, config().seed));
  exists_ = true;
  pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

void Machine::activate(int index) {
  Device& target = devices_[index];
  if (target.context_active) [[likely]]
    return;
  target.context_active = true;
  target.legacy = create_stream(Stream::Role::kLegacy, index, cudaStreamDefault, 0);
}

Stream* Machine::create_stream(Stream::Role role, int index, unsigned flags, int priority) {
  Stream* const stream = streams.create(role, index, flags, priority, next_stream_id_++);
  ++stream->references;  // the handle's; of lanes, the launch's
  return stream;
}

Stream* Machine::resolve(cudaStream_t handle) {
  if (handle == nullptr || handle == cudaStreamLegacy) {
    activate(thread_state.device);
    return current().legacy;
  }
  if (handle == cudaStreamPerThread) {
    activate(thread_state.device);
    Stream*& stream = current().per_thread[std::this_thread::get_id()];
    if (stream == nullptr) {
      stream = create_stream(Stream::Role::kPerThread, thread_state.device, cudaStreamDefault, 0);
    }
    return stream;
  }
  return stream_handle(handle);
}

void Machine::record_event(Lock& lock, Event& event, Stream& stream, cudaError_t fault) {
  event.recorded = true;
  event.capture_id = 0;
  const std::uint64_t record = ++event.record;
  if (event.timed()) {
    engine.submit(lock, stream, RecordWork(Ref<Event>(&event), record), fault);
  } else if (engine.has_pending() || fault != cudaSuccess || !engine.schedule().immediate()) {
    // Nothing to do when it is reached, but it is a point of its own in the stream: under
    // the legacy stream's rules it has dependencies, and it may complete late.
    engine.enqueue(lock, stream, {nullptr, {}, fault});
  }
  // What was enqueued may have run by now.
  event.mark = stream.idle() ? Mark{} : Mark{Ref<Stream>(&stream), stream.enqueued};
}

cudaError_t Machine::check_enqueue(Stream& stream) {
  if (stream.capture != nullptr) {
    return stream.capture->invalidated ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
  }
  if (stream.role == Stream::Role::kLegacy) {
    return captures.check_legacy(stream.device, /*invalidates=*/true);
  }
  return cudaSuccess;
}

void Machine::before_free(Lock& lock, const Allocation& allocation, const char* call) {
  const Work* const user = engine.find_user(allocation.begin, allocation.end());
  if (user == nullptr) return;
  char address[32];
  std::snprintf(address, sizeof address, "%#zx", static_cast<std::size_t>(allocation.begin));
  Reports::get().add("free-in-flight", std::string(call) + " of " +
                                           std::to_string(allocation.nbytes) + " bytes at " +
                                           address + " while " + user->describe() +
                                           " is in flight: the call waits for the device");
  engine.drain(lock, -1);
}

void Machine::lose(cudaError_t error) {
  const Lock lock(mutex);
  engine.lose(error);
}

}  // namespace staging::sim
