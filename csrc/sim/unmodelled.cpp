#include "sim/unmodelled.h"

#include <mutex>
#include <set>

#include "sim/reports.h"
#include "sim/thread_state.h"

namespace staging::sim {

namespace {

// Texts that cudaGetErrorString() returns, which nobody frees: one for each name.
const char* kept_text(const std::string& what) {
  static std::mutex& mutex = *new std::mutex;  // outlives static destructors
  static std::set<std::string>& texts = *new std::set<std::string>;
  const std::lock_guard lock(mutex);
  return texts.insert("operation not supported (the simulated device does not model " + what + ")")
      .first->c_str();
}

}  // namespace

cudaError_t unmodelled(const char* kind, const std::string& what) {
  Reports::get().add_once(kind, what);
  thread_state.unmodelled = kept_text(what);
  return cudaErrorNotSupported;
}

const char* unmodelled_text() noexcept {
  return thread_state.unmodelled;
}

}  // namespace staging::sim

extern "C" {

// What a stub of the runtime's does: an error like any other call's, and not a sticky one.
__attribute__((visibility("default"))) int staging_sim_unmodelled(const char* name) {
  const cudaError_t error = staging::sim::unmodelled("unmodelled-call", name);
  staging::sim::thread_state.last_error = error;
  return error;
}

__attribute__((visibility("default"))) const char* staging_sim_unmodelled_text() {
  return staging::sim::unmodelled_text();
}

// One of the driver's, which leaves no last error.
__attribute__((visibility("default"))) int staging_sim_unmodelled_driver(const char* name) {
  return staging::sim::unmodelled("unmodelled-call", name);
}
}
