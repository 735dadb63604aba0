// BLAKE3 digests that a device is computing.
//
// Purpose: enqueues the launches of a DeviceBlake3 and the way back of 32 bytes a tensor,
//   and knows when they are there.
// Owner: the digests' pinned block, which is not reused before the copy into it is done,
//   however early this is dropped. The tensors' memory stays the caller's concern.
// Thread-safety: done() and wait() from any thread.
#pragma once

#include <cstddef>
#include <span>

#include "hash/blake3.h"
#include "hash/device_blake3.h"
#include "memory/pinned_pool.h"
#include "stream/event.h"
#include "transfer/device_context.h"

namespace staging {

class PendingDigests {
 public:
  // Device memory that the constructor needs, for `count` tensors.
  static std::size_t scratch_nbytes(const DeviceBlake3& plan, std::size_t count) noexcept;

  // Enqueues on `stream`, and waits for nothing. `scratch` may be reused in stream order.
  // Throws StateError where the stream captures a graph: a digest is for the host, now.
  PendingDigests(DeviceContext& context, PinnedPool& pool, StreamRef stream,
                 const DeviceBlake3& plan, std::size_t count, void* scratch);

  bool done() const { return event_.query(); }
  // Blocks the calling thread until the digests are there, or throws Interrupted. Call
  // without the GIL.
  void wait() const { event_.synchronize(); }
  // Once done.
  std::span<const Blake3Digest> digests() const noexcept;
  const Event& event() const noexcept { return event_; }

 private:
  std::size_t count_;
  PinnedBlock result_;
  Event event_;
};

}  // namespace staging
