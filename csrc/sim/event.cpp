#include "sim/event.h"

#include <time.h>

#include "sim/machine.h"

namespace staging::sim {

std::int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

void Event::unreferenced(Event* event) {
  Machine::get().events.release(event);
}

cudaError_t RecordWork::run() const {
  if (event_->record == record_) event_->completed_ns = now_ns();
  return cudaSuccess;
}

}  // namespace staging::sim
