#include "sim/reports.h"

#include <cstdio>
#include <mutex>

namespace staging::sim {

namespace {

// A run that misuses memory in a loop must not fill memory with the news.
constexpr std::size_t kMaxReports = 1000;

struct State {
  std::mutex mutex;
  std::vector<Report> reports;
};

State& state() {
  static State& state = *new State;  // outlives static destructors
  return state;
}

}  // namespace

Reports& Reports::get() {
  static Reports reports;
  return reports;
}

void Reports::add(std::string kind, std::string message) {
  std::fprintf(stderr, "simulated device: %s: %s\n", kind.c_str(), message.c_str());
  const std::lock_guard lock(state().mutex);
  if (state().reports.size() < kMaxReports) {
    state().reports.push_back({std::move(kind), std::move(message)});
  }
}

void Reports::add_once(const std::string& kind, const std::string& message) {
  for (const Report& report : list()) {
    if (report.kind == kind && report.message == message) return;
  }
  add(kind, message);
}

std::vector<Report> Reports::list() const {
  const std::lock_guard lock(state().mutex);
  return state().reports;
}

void Reports::clear() {
  const std::lock_guard lock(state().mutex);
  state().reports.clear();
}

}  // namespace staging::sim
