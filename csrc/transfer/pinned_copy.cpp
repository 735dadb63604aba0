#include "transfer/pinned_copy.h"

#include <algorithm>

namespace staging {

void copy_pinned_async(PinnedPool& pool, StreamRef stream, void* dst, const void* src,
                       std::size_t nbytes, CopyKind kind) {
  Runtime& runtime = pool.runtime();
  if (!pool.has_seams()) [[likely]] {
    return runtime.copy_async(stream.device, dst, src, nbytes, kind, stream.handle);
  }
  auto* to = static_cast<std::byte*>(dst);
  const auto* from = static_cast<const std::byte*>(src);
  std::size_t done = 0;
  try {
    while (done < nbytes) {
      const std::size_t part = std::min(
          {nbytes - done, pool.registered_from(from + done), pool.registered_from(to + done)});
      runtime.copy_async(stream.device, to + done, from + done, part, kind, stream.handle);
      done += part;
    }
  } catch (...) {
    if (done > 0) {
      try {
        runtime.synchronize_stream(stream.device, stream.handle);
      } catch (...) {  // the first error is the one to report
      }
    }
    throw;
  }
}

void record_behind_copy(Runtime& runtime, StreamRef stream, Event& event, PinnedBlock& block) {
  try {
    event.record(stream);
  } catch (...) {
    try {
      runtime.synchronize_stream(stream.device, stream.handle);
    } catch (...) {
      (void)block.detach();
    }
    throw;
  }
}

}  // namespace staging
