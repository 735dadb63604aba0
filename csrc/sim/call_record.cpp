#include "sim/call_record.h"

#include <unistd.h>

#include <cstdio>
#include <mutex>

#include "sim/call.h"

namespace staging::sim {

namespace {

struct State {
  mutable std::mutex mutex;
  std::vector<CallEntry> entries;  // LOCK: mutex
  std::size_t limit = 0;           // LOCK: mutex
  std::size_t dropped = 0;         // LOCK: mutex
};

State& state() {
  static State& state = *new State;  // outlives static destructors
  return state;
}

const char* kind_name(int kind) {
  constexpr const char* kNames[] = {"HostToHost", "HostToDevice", "DeviceToHost", "DeviceToDevice",
                                    "Default"};
  return kind >= 0 && kind < 5 ? kNames[kind] : "";
}

}  // namespace

CallRecord& CallRecord::get() {
  static CallRecord record;
  return record;
}

void CallRecord::start(std::size_t limit) {
  const std::lock_guard lock(state().mutex);
  state().entries.clear();
  state().limit = limit;
  state().dropped = 0;
  Attention::set(Attention::kRecording, true);
}

void CallRecord::stop() {
  Attention::set(Attention::kRecording, false);
}

void CallRecord::add(const CallEntry& entry) {
  const std::lock_guard lock(state().mutex);
  if (state().entries.size() < state().limit) {
    state().entries.push_back(entry);
  } else {
    ++state().dropped;
  }
}

std::vector<CallEntry> CallRecord::entries() const {
  const std::lock_guard lock(state().mutex);
  return state().entries;
}

std::size_t CallRecord::dropped() const {
  const std::lock_guard lock(state().mutex);
  return state().dropped;
}

bool CallRecord::write(const char* path) const {
  std::FILE* const file = std::fopen(path, "a");
  if (file == nullptr) return false;
  const int pid = getpid();
  for (const CallEntry& entry : entries()) {
    std::fprintf(file,
                 "{\"pid\": %d, \"thread\": %d, \"name\": \"%s\", \"device\": %d, "
                 "\"stream\": %llu, \"bytes\": %llu, \"kind\": \"%s\", \"result\": %d}\n",
                 pid, entry.thread, name_of(entry.call), entry.device,
                 static_cast<unsigned long long>(entry.stream),
                 static_cast<unsigned long long>(entry.nbytes), kind_name(entry.kind),
                 static_cast<int>(entry.result));
  }
  if (const std::size_t n = dropped(); n > 0) {
    std::fprintf(file, "{\"pid\": %d, \"dropped\": %zu}\n", pid, n);
  }
  return std::fclose(file) == 0;
}

}  // namespace staging::sim
