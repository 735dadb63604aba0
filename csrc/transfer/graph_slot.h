// The fixed pinned slot that the captured copies of one buffer read at every replay.
//
// Purpose: under CUDA graph capture a copy becomes a node with a fixed source. Each captured
//   copy is followed by an external event record, so that the host knows when the last replay
//   has read the slot and may write it for the next.
// Owner: shared by the buffer and by every graph that has a copy out of it: the memory, the
//   events and the device array live until the last graph, and every executable made of one,
//   is gone.
// Thread-safety: one at a time (CopyOrder::Turn); destruction on any thread.
//
// Invariants:
//   * The slot is written only while no replay that was launched before reads it.
//   * A replay that is launched while the slot is written is the caller's mistake: refill and
//     replay of one buffer belong to one thread.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "transfer/device_context.h"

namespace staging {

class GraphSlot : public std::enable_shared_from_this<GraphSlot> {
 public:
  // Pins `nbytes`; may be made under capture.
  GraphSlot(DeviceContext& context, std::size_t nbytes);
  GraphSlot(const GraphSlot&) = delete;  // graphs point into it
  GraphSlot& operator=(const GraphSlot&) = delete;

  std::size_t nbytes() const noexcept { return block_.nbytes(); }

  // Captures slot[:nbytes] -> dst on `stream`, whose device is current. The graph retains the
  // slot and `keep`.
  void capture(StreamRef stream, void* dst, std::size_t nbytes, std::shared_ptr<void> keep);
  // Whether capture() failed half-way: the slot can never be written safely again.
  bool poisoned() const noexcept { return poisoned_; }

  // Blocks until no replay launched so far still reads the slot; whether it had to. Throws
  // Interrupted, DeviceError. Call without the GIL.
  bool wait();
  // Makes `stream` wait for the captured copies of the replays launched so far.
  void wait_on(StreamRef stream);
  // Between wait() and the next replay.
  void write(const void* src, std::size_t nbytes) noexcept;

 private:
  struct Read;
  std::vector<std::shared_ptr<Read>> reads();

  DeviceContext& context_;
  PinnedBlock block_;
  bool poisoned_ = false;
  std::vector<std::weak_ptr<Read>> reads_;  // of graphs that still exist
};

}  // namespace staging
