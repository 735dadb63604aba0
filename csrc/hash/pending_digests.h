// BLAKE3 digests that a device is computing.
//
// Purpose: enqueues the launches of a DeviceBlake3 and the way back of 32 bytes a tensor,
//   and knows when they are there.
// Owner: the digests' pinned block, which is not reused before the copy into it is done,
//   however early this is dropped. The tensors' memory stays the caller's concern.
// Thread-safety: fetch() from any thread.
#pragma once

#include <cstddef>
#include <span>

#include "hash/blake3.h"
#include "hash/device_blake3.h"
#include "memory/pinned_pool.h"
#include "transfer/device_context.h"
#include "transfer/fetch.h"

namespace staging {

class PendingDigests {
 public:
  // Device memory that the constructor needs, for `count` tensors.
  static std::size_t scratch_nbytes(const DeviceBlake3& plan, std::size_t count) noexcept;

  // Enqueues on `stream`, and waits for nothing. `scratch` may be reused in stream order.
  // Throws StateError where the stream captures a graph: a digest is for the host, now.
  PendingDigests(DeviceContext& context, PinnedPool& pool, StreamRef stream,
                 const DeviceBlake3& plan, std::size_t count, void* scratch);

  // How their arrival is learnt.
  const Fetch& fetch() const noexcept { return fetch_; }
  // Once done.
  std::span<const Blake3Digest> digests() const noexcept;

 private:
  std::size_t count_;
  PinnedBlock result_;
  Fetch fetch_;
};

}  // namespace staging
