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
  try {
    for (Block& block : blocks_) enqueue(block);
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

std::span<const std::byte> BlockDownload::next() {
  if (lent_) enqueue(blocks_[(next_ + blocks_.size() - 1) % blocks_.size()]);
  Block& block = blocks_[next_];
  lent_ = block.nbytes > 0;
  if (!lent_) return {};
  block.event.synchronize();
  next_ = (next_ + 1) % blocks_.size();
  return {block.memory.bytes(), block.nbytes};
}

void BlockDownload::enqueue(Block& block) {
  block.nbytes = std::min(nbytes_left_, block_nbytes_);
  if (block.nbytes == 0) return;
  Runtime& runtime = context_.runtime();
  const DeviceScope scope(runtime, stream_.device);
  if (!block.memory) {
    block.memory = pool_.allocate(block.nbytes, stream_.device);
  }
  block.event = context_.events().acquire();
  copy_pinned_async(pool_, stream_, block.memory.data(), src_, block.nbytes,
                    CopyKind::kDeviceToHost);
  record_behind_copy(runtime, stream_, block.event, block.memory);
  src_ += block.nbytes;
  nbytes_left_ -= block.nbytes;
}

}  // namespace staging
