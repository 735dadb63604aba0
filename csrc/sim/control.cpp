#include "sim/control.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "sim/call_record.h"
#include "sim/counters.h"
#include "sim/faults.h"
#include "sim/machine.h"
#include "sim/progress.h"
#include "sim/reports.h"

using namespace staging::sim;

namespace {

void write_record_at_exit() {
  const std::string& path = config().record_path;
  if (!CallRecord::get().write(path.c_str())) {
    std::fprintf(stderr, "simulated device: cannot write the call record %s\n", path.c_str());
  }
}

// --record: every process of the command appends to the same file. Nothing else happens
// while the library is loaded.
struct RecordAtExit {
  RecordAtExit() {
    const char* const path = std::getenv("STAGING_SIM_RECORD");
    if (path == nullptr || *path == '\0') return;
    constexpr std::size_t kLimit = 1'000'000;
    CallRecord::get().start(kLimit);
    std::atexit(write_record_at_exit);
  }
};

const RecordAtExit record_at_exit;

}  // namespace

extern "C" {

int staging_sim_call_count() {
  return static_cast<int>(kCallCount);
}

const char* staging_sim_call_name(int index) {
  return index >= 0 && index < static_cast<int>(kCallCount) ? kCallNames[index] : nullptr;
}

void staging_sim_counters(uint64_t* out) {
  for (std::size_t i = 0; i < kCallCount; ++i) out[i] = Counters::get(static_cast<CallId>(i));
}

void staging_sim_record_start(size_t limit) {
  CallRecord::get().start(limit);
}
void staging_sim_record_stop() {
  CallRecord::get().stop();
}

size_t staging_sim_record_read(staging_sim_call* out, size_t first, size_t count) {
  const std::vector<CallEntry> entries = CallRecord::get().entries();
  size_t n = 0;
  for (; n < count && first + n < entries.size(); ++n) {
    const CallEntry& entry = entries[first + n];
    out[n] = {
        name_of(entry.call), entry.stream, entry.nbytes, entry.kind, static_cast<int>(entry.result),
        entry.device,        entry.thread};
  }
  return n;
}

size_t staging_sim_record_dropped() {
  return CallRecord::get().dropped();
}

int staging_sim_fault_add(const char* call, uint64_t nth, int code, int sticky, int deferred) {
  return staging_sim_fault_add_in("", call, nth, code, sticky, deferred);
}

int staging_sim_fault_add_in(const char* library, const char* call, uint64_t nth, int code,
                             int sticky, int deferred) {
  const CallId id = find_call(call);
  if (id == CallId::kCount || nth == 0 || code == 0) return -1;
  return Faults::get().add(
      {id, nth, static_cast<cudaError_t>(code), sticky != 0, deferred != 0, library});
}

int staging_sim_fault_remove(int fault) {
  return Faults::get().remove(fault);
}
void staging_sim_fault_clear() {
  Faults::get().clear();
}

int staging_sim_set_policy(const char* policy, uint64_t seed) {
  const auto wanted = find_policy(policy);
  if (!wanted) return -1;
  Machine& machine = Machine::get();
  Lock lock(machine.mutex);
  for (const Stream* stream : machine.engine.pending_streams()) {
    if (stream->holds > 0) return -1;
  }
  machine.engine.set_schedule(lock, Schedule::make(*wanted, seed));
  return 0;
}

const char* staging_sim_policy() {
  Machine& machine = Machine::get();
  const Lock lock(machine.mutex);
  return name_of(machine.engine.schedule().policy());
}

uint64_t staging_sim_seed() {
  Machine& machine = Machine::get();
  const Lock lock(machine.mutex);
  return machine.engine.schedule().seed();
}

int staging_sim_set_progress_ms(int idle_ms) {
  if (idle_ms < 0) return -1;
  Machine& machine = Machine::get();
  const Lock lock(machine.mutex);
  return Progress::get().set_idle_ms(idle_ms);
}

size_t staging_sim_pending() {
  Machine& machine = Machine::get();
  const Lock lock(machine.mutex);
  return machine.engine.pending_count();
}

int staging_sim_run_one() {
  Machine& machine = Machine::get();
  Lock lock(machine.mutex);
  std::vector<Stream*> ready;
  machine.engine.collect_ready(ready);
  if (ready.empty()) return 0;
  machine.engine.run_head(lock, *ready.front());
  return 1;
}

void staging_sim_run_all() {
  Machine& machine = Machine::get();
  Lock lock(machine.mutex);
  machine.engine.drain(lock, -1);
  lock.unlock();
  machine.engine.callbacks().flush();
}

int staging_sim_hold(uint64_t handle, int held) {
  Machine& machine = Machine::get();
  Lock lock(machine.mutex);
  Stream* const stream = machine.resolve(reinterpret_cast<cudaStream_t>(handle));
  if (stream == nullptr || (held == 0 && stream->holds == 0)) return -1;
  machine.engine.hold(lock, *stream, held != 0);
  return 0;
}

size_t staging_sim_report_count() {
  return Reports::get().list().size();
}

int staging_sim_report(size_t index, char* kind, size_t kind_nbytes, char* message,
                       size_t message_nbytes) {
  const std::vector<Report> reports = Reports::get().list();
  if (index >= reports.size()) return -1;
  std::snprintf(kind, kind_nbytes, "%s", reports[index].kind.c_str());
  std::snprintf(message, message_nbytes, "%s", reports[index].message.c_str());
  return 0;
}

void staging_sim_report_clear() {
  Reports::get().clear();
}

void staging_sim_objects(struct staging_sim_objects* out) {
  Machine& machine = Machine::get();
  const Lock lock(machine.mutex);
  const PointerTable& table = machine.memory.table();
  *out = {machine.event_handles,
          machine.stream_handles,
          machine.graphs.graphs.count(),
          machine.graphs.executable_handles,
          machine.graphs.objects.count(),
          table.count(Space::kPinned),
          table.nbytes(Space::kPinned),
          table.count(Space::kRegistered),
          table.nbytes(Space::kRegistered),
          table.count(Space::kDevice),
          table.nbytes(Space::kDevice)};
}

int staging_sim_lost() {
  Machine& machine = Machine::get();
  const Lock lock(machine.mutex);
  return machine.lost();
}

void staging_sim_recover() {
  Machine& machine = Machine::get();
  Lock lock(machine.mutex);
  machine.engine.recover(lock);
  thread_state.last_error = cudaSuccess;
}

int staging_sim_device_count() {
  return config().device_count;
}
int staging_sim_current_device() {
  return thread_state.device;
}

int staging_sim_device_attribute(int* value, int attribute, int device) {
  if (value == nullptr || device < 0 || device >= config().device_count) return -1;
  return device_attribute(device, static_cast<cudaDeviceAttr>(attribute), value) ? 0 : -1;
}

int staging_sim_context_active(int device) {
  Machine& machine = Machine::get();
  const Lock lock(machine.mutex);
  return machine.valid_device(device) && machine.device(device).context_active ? 1 : 0;
}

const char* staging_sim_protection() {
  return DeviceAccess::mechanism();
}

}  // extern "C"
