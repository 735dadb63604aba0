// A stream: a queue of work in order, and how far it has come.
//
// Purpose: every ordering in the stand-in is a Mark, "this stream has completed that many
//   pieces of work": in-stream order, events, the legacy stream's implicit rules, graphs.
// Owner: the machine's pool. A handle, a queue that is not empty and each Mark keep a
//   stream alive. Thread-safety: the machine's lock.
//
// Invariants: completed <= enqueued; queue.size() == enqueued - completed; the head is
//   `busy` while it runs without the lock, and nobody else touches it then.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "sim/handle_pool.h"
#include "sim/work.h"

namespace staging::sim {

class Capture;
class Stream;
struct Node;

struct Mark {
  Ref<Stream> stream;  // null: reached from the start
  std::uint64_t ticket = 0;

  inline bool reached() const noexcept;
};

struct Op {
  std::shared_ptr<const Work> work;  // null: only waits
  std::vector<Mark> after;
  cudaError_t fault = cudaSuccess;  // injected: happens instead of the work
};

class Stream {
 public:
  enum class Role : std::uint8_t {
    kUser,
    kLegacy,
    kPerThread,
    kLane,  // carries a part of a launched graph; nobody has a handle to it
  };

  Stream(Role role, int device, unsigned flags, int priority, std::uint64_t id)
      : role(role), device(device), flags(flags), priority(priority), id(id) {}

  bool idle() const noexcept { return completed == enqueued; }
  // Takes part in the legacy stream's implicit synchronisation.
  bool blocking() const noexcept {
    return role != Role::kLane && (flags & cudaStreamNonBlocking) == 0;
  }
  Mark tail() { return {Ref<Stream>(this), enqueued}; }

  const Role role;
  const int device;
  const unsigned flags;
  const int priority;
  const std::uint64_t id;

  std::uint64_t enqueued = 0;
  std::uint64_t completed = 0;
  std::deque<Op> queue;
  bool busy = false;
  int holds = 0;           // a test keeps the stream from running
  bool destroyed = false;  // the handle is gone; what is enqueued runs all the same

  Capture* capture = nullptr;                    // while the stream is captured
  std::vector<Node*> capture_tail;               // what the next captured node depends on
  std::vector<cudaGraphEdgeData> capture_edges;  // handed out by cudaStreamGetCaptureInfo

  unsigned references = 0;
  static void unreferenced(Stream* stream);
};

bool Mark::reached() const noexcept {
  return !stream || stream->completed >= ticket;
}

}  // namespace staging::sim
