// An event: which work it captured, and when that was done.
//
// Owner: the machine's pool; a handle and each pending record keep it alive.
// Thread-safety: the machine's lock.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "sim/handle_pool.h"
#include "sim/stream.h"
#include "sim/work.h"

namespace staging::sim {

class Event {
 public:
  Event(int device, unsigned flags) : device(device), flags(flags) {}

  bool timed() const noexcept { return (flags & cudaEventDisableTiming) == 0; }
  bool complete() const noexcept { return mark.reached(); }

  const int device;
  const unsigned flags;
  bool destroyed = false;         // the handle is gone
  bool recorded = false;          // outside of a capture, ever
  Mark mark;                      // of the latest record
  std::uint64_t record = 0;       // number of the latest record
  std::int64_t completed_ns = 0;  // of the latest completed record, if timed

  // The latest record was captured: it is a set of nodes, not a point in time.
  std::uint64_t capture_id = 0;  // 0: it was not
  std::vector<Node*> capture_nodes;

  unsigned references = 0;
  static void unreferenced(Event* event);
};

// Takes the time, if the event was not recorded again in the meantime. That the event is
// complete follows from the stream's progress.
class RecordWork final : public Work {
 public:
  RecordWork(Ref<Event> event, std::uint64_t record)
      : Work(Kind::kMark, /*brief=*/true), event_(std::move(event)), record_(record) {}

  cudaError_t run() const override;
  std::string describe() const override { return "an event record"; }

 private:
  Ref<Event> event_;
  std::uint64_t record_;
};

std::int64_t now_ns();

}  // namespace staging::sim
