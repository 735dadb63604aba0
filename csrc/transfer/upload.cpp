#include "transfer/upload.h"

#include <cstring>

#include "transfer/pinned_copy.h"

namespace staging {

Event upload_snapshot(DeviceContext& context, UploadRing& ring, void* dst, const void* src,
                      std::size_t nbytes, UploadRing::Tag tag, UploadReport* report) {
  return upload_through_slot(
      context, ring, nbytes, [&](std::byte* slot) { std::memcpy(slot, src, nbytes); },
      [&](const std::byte* slot) {
        copy_pinned_async(context.pool(), ring.stream(), dst, slot, nbytes,
                          CopyKind::kHostToDevice);
      },
      tag, report);
}

bool detail::settle_unrecorded(UploadRing& ring, const UploadRing::Slot& slot) noexcept {
  const StreamRef stream = ring.stream();
  try {
    ring.events().runtime().synchronize_stream(stream.device, stream.handle);
    ring.abandon(slot);
    return true;
  } catch (...) {
    ring.commit(slot, {});
    return false;
  }
}

}  // namespace staging
