#include "hash/block_download.h"

#include <algorithm>

#include "runtime/device_scope.h"
#include "support/error.h"
#include "transfer/pinned_copy.h"

namespace staging {

BlockDownload::BlockDownload(DeviceContext& context, PinnedPool& pool, StreamRef stream,
                             const void* src, std::size_t nbytes, std::size_t block_nbytes)
    : context_(context),
      pool_(pool),
      stream_(stream),
      src_(static_cast<const std::byte*>(src)),
      nbytes_left_(nbytes),
      block_nbytes_(block_nbytes) {
  STAGING_EXPECTS(block_nbytes > 0, "block_nbytes must be positive, got ", block_nbytes);
  if (context_.runtime().capture_status(stream.device, stream.handle) != CaptureStatus::kNone) {
    throw StateError(
        "a tensor cannot be read on a stream that captures a CUDA graph: its bytes are needed "
        "on the host at once; read it before or after the capture");
  }
  allocate_blocks();
  try {
    for (std::size_t i = 0; i < count_; ++i) enqueue(blocks_[i]);
  } catch (...) {
    release_blocks();  // some copies are in flight, and no destructor follows
    throw;
  }
}

BlockDownload::~BlockDownload() {
  release_blocks();
}

void BlockDownload::release_blocks() noexcept {
  for (Block& block : blocks_) {
    if (block.nbytes == 0) continue;
    try {
      block.memory.release({block.event});
    } catch (...) {
      (void)block.memory.detach();  // leaked, rather than reused under the copy
    }
  }
}

// Two blocks keep the copies going while one is looked at, so smaller ones are tried before one
// alone.
void BlockDownload::allocate_blocks() {
  const DeviceScope scope(context_.runtime(), stream_.device);
  for (;; block_nbytes_ = std::max(block_nbytes_ / 2, kLeastBlockNbytes)) {
    count_ = 0;
    try {
      for (std::size_t left = nbytes_left_; left > 0 && count_ < blocks_.size(); ++count_) {
        const std::size_t nbytes = std::min(left, block_nbytes_);
        blocks_[count_].memory = pool_.allocate(nbytes, stream_.device);
        left -= nbytes;
      }
    } catch (const OutOfMemory&) {
      const bool smallest = block_nbytes_ <= kLeastBlockNbytes;
      if (count_ < 2 && !smallest) {
        blocks_[0].memory.release();
        continue;
      }
      if (count_ == 0) throw;
    }
    count_ = std::max<std::size_t>(count_, 1);
    return;
  }
}

std::span<const std::byte> BlockDownload::next() {
  if (lent_) enqueue(blocks_[(next_ + count_ - 1) % count_]);
  Block& block = blocks_[next_];
  lent_ = block.nbytes > 0;
  if (!lent_) return {};
  block.event.synchronize();
  next_ = (next_ + 1) % count_;
  return {block.memory.bytes(), block.nbytes};
}

void BlockDownload::enqueue(Block& block) {
  const std::size_t nbytes = std::min(nbytes_left_, block_nbytes_);
  if (nbytes == 0) {
    block.nbytes = 0;
    return;
  }
  Runtime& runtime = context_.runtime();
  const DeviceScope scope(runtime, stream_.device);
  block.event = context_.events().acquire();
  block.nbytes = nbytes;  // from here on it is released behind its event
  copy_pinned_async(pool_, stream_, block.memory.data(), src_, block.nbytes,
                    CopyKind::kDeviceToHost);
  record_behind_copy(runtime, stream_, block.event, block.memory);
  src_ += block.nbytes;
  nbytes_left_ -= block.nbytes;
}

}  // namespace staging
