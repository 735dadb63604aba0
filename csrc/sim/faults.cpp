#include "sim/faults.h"

#include <dlfcn.h>
#include <unwind.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "sim/call.h"

namespace staging::sim {

namespace {

struct Armed {
  Fault fault;
  std::uint64_t left;  // calls until it happens; 0: it has
};

struct State {
  std::mutex mutex;
  std::map<int, Armed> armed;           // LOCK: mutex
  int next_id = 1;                      // LOCK: mutex
  std::atomic<bool> by_library{false};  // some fault that is armed asks who calls
};

State& state() {
  static State& state = *new State;  // outlives static destructors
  return state;
}

// The file that the entry point was called from: of the first frame outside of this library.
// Empty where there is none.
std::string calling_library() {
  struct Walk {
    const void* own;  // where this library begins
    std::string path;
  };
  Dl_info own{};
  if (dladdr(reinterpret_cast<const void*>(&calling_library), &own) == 0) return {};
  Walk walk{own.dli_fbase, {}};
  _Unwind_Backtrace(
      [](_Unwind_Context* frame, void* argument) {
        Walk& walk = *static_cast<Walk*>(argument);
        Dl_info info{};
        // A return address may be the first byte after the caller: look at the call itself.
        const std::uintptr_t call = _Unwind_GetIP(frame) - 1;
        if (dladdr(reinterpret_cast<const void*>(call), &info) == 0) return _URC_END_OF_STACK;
        if (info.dli_fbase == walk.own) return _URC_NO_REASON;
        walk.path = info.dli_fname;
        return _URC_END_OF_STACK;
      },
      &walk);
  return walk.path;
}

void update_attention_locked() {
  bool waiting = false;
  bool by_library = false;
  for (const auto& [id, armed] : state().armed) {
    waiting |= armed.left > 0;
    by_library |= armed.left > 0 && !armed.fault.library.empty();
  }
  state().by_library = by_library;
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
  // Before the lock: looking asks the dynamic linker, which may be calling us.
  const std::string caller = state().by_library ? calling_library() : std::string();
  const std::lock_guard lock(state().mutex);
  std::optional<Fault> due;
  for (auto& [id, armed] : state().armed) {
    if (armed.fault.call != call || armed.left == 0) continue;
    if (caller.find(armed.fault.library) == std::string::npos) continue;
    if (--armed.left == 0 && !due) due = armed.fault;
  }
  if (due) update_attention_locked();
  return due;
}

}  // namespace staging::sim
