#include "hash/pending_digests.h"

#include <utility>

#include "runtime/device_scope.h"
#include "support/error.h"
#include "transfer/pinned_copy.h"

namespace staging {

std::size_t PendingDigests::scratch_nbytes(const DeviceBlake3& plan, std::size_t count) noexcept {
  return plan.workspace_nbytes() + count * DeviceBlake3::kDigestNbytes;
}

PendingDigests::PendingDigests(DeviceContext& context, PinnedPool& pool, StreamRef stream,
                               const DeviceBlake3& plan, std::size_t count, void* scratch)
    : count_(count) {
  Runtime& runtime = context.runtime();
  if (runtime.capture_status(stream.device, stream.handle) != CaptureStatus::kNone) {
    throw StateError(
        "a digest cannot be computed on a stream that captures a CUDA graph: its result is "
        "needed on the host at once; compute it before or after the capture");
  }
  const std::size_t nbytes = count * DeviceBlake3::kDigestNbytes;
  const DeviceScope scope(runtime, stream.device);
  result_ = pool.allocate(nbytes, stream.device);
  // Before the launches: if no event is to be had, nothing has been enqueued.
  Event event = context.events().acquire();
  std::byte* const digests = static_cast<std::byte*>(scratch);
  plan.enqueue(runtime, stream.device, stream.handle, digests + nbytes, digests);
  copy_pinned_async(pool, stream, result_.data(), digests, nbytes, CopyKind::kDeviceToHost);
  record_behind_copy(runtime, stream, event, result_);
  result_.add_gate(event);
  fetch_ = Fetch(context, std::move(event));
}

std::span<const Blake3Digest> PendingDigests::digests() const noexcept {
  return {reinterpret_cast<const Blake3Digest*>(result_.data()), count_};
}

}  // namespace staging
