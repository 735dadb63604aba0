// Host-to-device copies through a slot: the source may be overwritten when the call returns.
//
// Owner: the slot's memory is the ring's. Thread-safety: from any thread.
#pragma once

#include <cstddef>

#include "transfer/device_context.h"

namespace staging {

// Copies `nbytes` (> 0) from `src` into a slot of `ring` and enqueues the copy from the slot
// to `dst` on the ring's stream, whose device is current. Waits only where the ring is full
// of copies in flight. Returns the copy's event.
//   One copy_async, one record_event; no other runtime call once warm.
Event upload_snapshot(DeviceContext& context, UploadRing& ring, void* dst, const void* src,
                      std::size_t nbytes);

namespace detail {
// A copy was enqueued and its event could not be recorded: waits for the stream, so that
// nothing is left in flight that nobody knows of. Where that fails too, the slot stays taken.
void settle_unrecorded(UploadRing& ring, const UploadRing::Slot& slot) noexcept;
}  // namespace detail

// The same for a slot that `fill` writes and `enqueue` reads: for copies that one pointer and
// a length do not describe. `enqueue` may throw where it enqueued nothing; the slot is then
// free again.
template <typename Fill, typename Enqueue>
Event upload_through_slot(DeviceContext& context, UploadRing& ring, std::size_t nbytes, Fill fill,
                          Enqueue enqueue) {
  const UploadRing::Slot slot = ring.reserve(nbytes);
  Event event;
  try {
    // Before the copy: if no event is to be had, nothing has been enqueued.
    event = context.events().acquire();
    fill(slot.data());
    enqueue(slot.data());
  } catch (...) {
    ring.abandon(slot);
    throw;
  }
  try {
    event.record(ring.stream().handle);
  } catch (...) {
    detail::settle_unrecorded(ring, slot);
    throw;
  }
  ring.commit(slot, event);
  return event;
}

}  // namespace staging
