// Host-to-device copies through a slot: the source may be overwritten when the call returns.
//
// Owner: the slot's memory is the ring's. Thread-safety: from any thread.
#pragma once

#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>

#include "transfer/device_context.h"

namespace staging {

// What an upload tells beside its event.
struct UploadReport {
  std::uint64_t waits = 0;  // for the device, where the ring was full
  std::uint64_t waited_us = 0;
  // Behind an exception: a copy was enqueued, and nothing tells when it ends.
  bool lost = false;
};

// Copies `nbytes` (> 0) from `src` into a slot of `ring` and enqueues the copy from the slot
// to `dst` on the ring's stream, whose device is current. Waits only where the ring is full
// of copies in flight. Returns the copy's event.
//   One copy_async, one record_event; no other runtime call once warm.
Event upload_snapshot(DeviceContext& context, UploadRing& ring, void* dst, const void* src,
                      std::size_t nbytes, UploadRing::Tag tag = 0, UploadReport* report = nullptr);

namespace detail {
// A copy was enqueued and its event could not be recorded: waits for the stream, so that
// nothing is left in flight that nobody knows of. Where that fails too, the slot stays taken
// and this returns false.
bool settle_unrecorded(UploadRing& ring, const UploadRing::Slot& slot) noexcept;
}  // namespace detail

// A slot that somebody has reserved; it is given up with this, unless it was uploaded.
class ReservedSlot {
 public:
  ReservedSlot(std::shared_ptr<UploadRing> ring, UploadRing::Slot slot) noexcept
      : owner_(std::move(ring)), ring_(owner_.get()), slot_(std::move(slot)) {}
  // For a ring that outlives this.
  ReservedSlot(UploadRing& ring, UploadRing::Slot slot) noexcept
      : ring_(&ring), slot_(std::move(slot)) {}
  ReservedSlot(const ReservedSlot&) = delete;  // one claim
  ReservedSlot& operator=(const ReservedSlot&) = delete;
  ReservedSlot(ReservedSlot&& other) noexcept
      : owner_(std::move(other.owner_)),
        ring_(std::exchange(other.ring_, nullptr)),
        slot_(std::move(other.slot_)) {}
  ~ReservedSlot() {
    if (ring_ != nullptr) ring_->abandon(slot_);
  }

  std::byte* data() const noexcept { return slot_.data(); }
  const UploadRing::Slot& slot() const noexcept { return slot_; }
  StreamRef stream() const noexcept { return ring_->stream(); }

  // Enqueues the copy out of the slot, which is filled by now, on the ring's stream, whose
  // device is current. `enqueue(slot)` may throw where it enqueued nothing; where it enqueues
  // several operations, `enqueue(slot, &enqueued)` counts them and may throw at any of them.
  template <typename Enqueue>
  Event upload(DeviceContext& context, Enqueue enqueue, UploadReport* report = nullptr) {
    // Before the copy: if no event is to be had, nothing has been enqueued.
    Event event = context.events().acquire();
    std::size_t enqueued = 0;
    try {
      if constexpr (std::is_invocable_v<Enqueue, std::byte*, std::size_t*>) {
        enqueue(slot_.data(), &enqueued);
      } else {
        enqueue(slot_.data());
        enqueued = 1;
      }
      event.record(ring_->stream());
    } catch (...) {
      if (enqueued > 0) {
        const bool settled = detail::settle_unrecorded(*std::exchange(ring_, nullptr), slot_);
        if (report != nullptr) report->lost = !settled;
      }
      throw;
    }
    std::exchange(ring_, nullptr)->commit(slot_, event);
    return event;
  }

 private:
  std::shared_ptr<UploadRing> owner_;
  UploadRing* ring_;
  UploadRing::Slot slot_;
};

// Reserves a slot, lets `fill` write it and `enqueue` enqueue the copy out of it: for copies
// that one pointer and a length do not describe.
template <typename Fill, typename Enqueue>
Event upload_through_slot(DeviceContext& context, UploadRing& ring, std::size_t nbytes, Fill fill,
                          Enqueue enqueue, UploadRing::Tag tag = 0,
                          UploadReport* report = nullptr) {
  ReservedSlot reserved(ring, ring.reserve(nbytes, tag));
  if (report != nullptr) {
    report->waits += reserved.slot().waits();
    report->waited_us += reserved.slot().waited_us();
  }
  fill(reserved.data());
  return reserved.upload(context, enqueue, report);
}

}  // namespace staging
