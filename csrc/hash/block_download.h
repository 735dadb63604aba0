// Brings device memory to the host in pinned blocks, the next ones while one is looked at.
//
// Purpose: the bytes of a device tensor for those who read them once, in order (a hash):
//   a few megabytes of pinned memory, whatever the tensor's size; where the pool has less to
//   give, fewer and smaller blocks.
// Owner: the blocks. They are not reused before the copies into them are done, however early
//   this is dropped; the device memory stays the caller's concern.
// Thread-safety: one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "memory/pinned_pool.h"
#include "stream/event.h"
#include "transfer/device_context.h"

namespace staging {

class BlockDownload {
 public:
  static constexpr std::size_t kDefaultBlockNbytes = std::size_t{1} << 20;
  // No block is made smaller than this.
  static constexpr std::size_t kLeastBlockNbytes = std::size_t{4} << 10;

  // Enqueues the first blocks on `stream`. Waits for nothing, except where pinned memory is short:
  // as the pool does, for copies that use blocks which were released. Throws StateError where the
  // stream captures a graph, OutOfMemory where not one of the smallest blocks is to be had.
  BlockDownload(DeviceContext& context, PinnedPool& pool, StreamRef stream, const void* src,
                std::size_t nbytes, std::size_t block_nbytes = kDefaultBlockNbytes);
  BlockDownload(const BlockDownload&) = delete;  // copies are in flight into its blocks
  BlockDownload& operator=(const BlockDownload&) = delete;
  ~BlockDownload();

  // Waits for the next block and returns it; empty at the end. It stays as it is until the
  // next call, which enqueues another copy into it. Call without the GIL; throws Interrupted.
  std::span<const std::byte> next();

 private:
  struct Block {
    PinnedBlock memory;
    Event event;
    std::size_t nbytes = 0;
  };

  void allocate_blocks();
  void enqueue(Block& block);
  void release_blocks() noexcept;

  DeviceContext& context_;
  PinnedPool& pool_;
  const StreamRef stream_;
  const std::byte* src_;
  std::size_t nbytes_left_;  // not enqueued yet
  std::size_t block_nbytes_;
  std::array<Block, 3> blocks_;
  std::size_t count_ = 0;  // of blocks, at least 1
  std::size_t next_ = 0;   // the block that next() returns
  bool lent_ = false;      // the one before it is with the caller
};

}  // namespace staging
