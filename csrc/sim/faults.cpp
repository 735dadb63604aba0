#include "sim/faults.h"

#include <map>
#include <mutex>

#include "sim/call.h"

namespace staging::sim {

namespace {

struct Armed {
  Fault fault;
  std::uint64_t left;  // calls until it happens; 0: it has
};

struct State {
  std::mutex mutex;
  std::map<int, Armed> armed;  // LOCK: mutex
  int next_id = 1;             // LOCK: mutex
};

State& state() {
  static State& state = *new State;  // outlives static destructors
  return state;
}

void update_attention_locked() {
  bool waiting = false;
  for (const auto& [id, armed] : state().armed) waiting |= armed.left > 0;
  Attention::set(Attention::kFaults, waiting);
}

}  // namespace

Faults& Faults::get() {
  static Faults faults;
  return faults;
}

int Faults::add(const Fault& fault) {
  const std::lock_guard lock(state().mutex);
  const int id = state().next_id++;
  state().armed.emplace(id, Armed{fault, fault.nth});
  update_attention_locked();
  return id;
}

int Faults::remove(int id) {
  const std::lock_guard lock(state().mutex);
  const auto it = state().armed.find(id);
  if (it == state().armed.end()) return 0;
  const int happened = it->second.left == 0 ? 1 : 0;
  state().armed.erase(it);
  update_attention_locked();
  return happened;
}

void Faults::clear() {
  const std::lock_guard lock(state().mutex);
  state().armed.clear();
  update_attention_locked();
}

std::optional<Fault> Faults::check(CallId call) {
  const std::lock_guard lock(state().mutex);
  std::optional<Fault> due;
  for (auto& [id, armed] : state().armed) {
    if (armed.fault.call != call || armed.left == 0) continue;
    if (--armed.left == 0 && !due) due = armed.fault;
  }
  if (due) update_attention_locked();
  return due;
}

}  // namespace staging::sim
