// The pinned slots through which the host-to-device copies of one stream pass.
//
// Purpose: a copy's bytes are put into a slot and the DMA reads the slot, so the source may
//   be overwritten at once. Small slots are reservations in a ring of bytes, as large as what
//   is copied; a large one, and one that a caller fills at leisure, is a block of its own.
//   Each stream has a ring of its own, so a stalled one holds up only itself.
// Owner: the ring's memory comes from the pinned pool and returns to it; a Slot is a claim
//   on a part of it that ends with commit() or abandon().
// Thread-safety: all of it, from any thread. No runtime call is made under the lock.
//
// Invariants:
//   * A slot is not handed out again before the event it was committed with is complete.
//   * Slots of a segment are freed in the order in which they were reserved.
//   * "Complete" spreads: the ring's clock stamps each slot when it is reserved and when it
//     is committed. A slot that was committed before another was reserved was enqueued
//     before it, on the same stream; once the later one is complete, so is the earlier.
//     So one query settles many slots.
//   * A slot that was committed without an event is settled by a later one's. (Its block, if
//     it has one of its own, is never used again.)
//   * What is in flight stays within the device's budget (upload_budget.h): the ring grows up to
//     that and then waits for its oldest slot (backpressure). It never wraps onto one.
//   * A segment that has drained returns to the pool, unless it is the current one. So what
//     stays pinned follows what is in flight, down to one segment.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "memory/pinned_pool.h"
#include "ring/upload_budget.h"
#include "stream/event_pool.h"

namespace staging {

struct UploadRingStats {
  std::size_t capacity_nbytes = 0;   // of its segments
  std::size_t in_flight_nbytes = 0;  // reserved and not free again, blocks included
  std::size_t in_flight_slots = 0;
  std::uint64_t waits = 0;  // times that a reservation had to wait for the device
  std::uint64_t waited_us = 0;
};

class UploadRing {
 public:
  static constexpr std::size_t kAlignment = 256;
  static constexpr std::size_t kFirstSegmentNbytes = std::size_t{256} << 10;
  static constexpr std::size_t kMaxSegmentNbytes = std::size_t{2} << 20;
  // A larger slot is a block of its own.
  static constexpr std::size_t kMaxSlotNbytes = kMaxSegmentNbytes / 8;

  class Slot {
   public:
    std::byte* data() const noexcept { return data_; }
    // Of a slot with a block of its own: keeps the memory, whatever becomes of the slot.
    const std::shared_ptr<PinnedBlock>& block() const noexcept { return block_; }
    // How often, and for how long, its reservation had to wait for the device.
    std::uint32_t waits() const noexcept { return waits_; }
    std::uint64_t waited_us() const noexcept { return waited_us_; }

   private:
    friend class UploadRing;
    std::byte* data_ = nullptr;
    void* segment_ = nullptr;  // null: a block of its own
    std::uint64_t key_ = 0;    // index in the segment, or the stamp of the reservation
    std::shared_ptr<PinnedBlock> block_;
    std::uint32_t waits_ = 0;
    std::uint64_t waited_us_ = 0;
  };

  // Whose slot it is, for counting. Only compared; 0 is nobody's.
  using Tag = std::uint64_t;

  UploadRing(EventPool& events, PinnedPool& pool, StreamRef stream, UploadBudget& budget) noexcept
      : events_(events), pool_(pool), stream_(stream), budget_(budget) {}
  UploadRing(const UploadRing&) = delete;  // slots point into it
  UploadRing& operator=(const UploadRing&) = delete;
  // Waits for nothing: the pool keeps memory that is still in flight until it is not.
  ~UploadRing();

  // Claims `nbytes` (> 0). Waits only where the budget is used up, then for this ring's oldest
  // copy; throws Interrupted out of that wait, OutOfMemory or DeviceError with nothing claimed.
  // Call without the GIL.
  Slot reserve(std::size_t nbytes, Tag tag = 0);
  // The same with a block of its own, which may stay reserved for as long as the caller
  // likes: it does not keep others from being freed, nor does it count towards the limit
  // before it is committed.
  Slot reserve_block(std::size_t nbytes, Tag tag = 0);
  // The copy out of the slot was enqueued on the ring's stream, and `event` recorded behind
  // it. A null event: nobody knows when it ends.
  void commit(const Slot& slot, Event event);
  // Nothing was enqueued: the slot is free.
  void abandon(const Slot& slot);

  // Returns what no copy in flight uses to the pool; the number of bytes.
  std::size_t trim();
  UploadRingStats stats() const;
  // The same, having asked the runtime what is complete. What that cannot tell counts as in flight.
  UploadRingStats settled_stats();
  // Asks the runtime first, so that what is complete does not count: slots with this tag.
  std::size_t count_in_flight(Tag tag);
  StreamRef stream() const noexcept { return stream_; }
  EventPool& events() const noexcept { return events_; }

 private:
  enum class State : std::uint8_t { kReserved, kInFlight, kComplete };

  struct Entry {
    std::uint64_t end;            // position behind the slot; of a block, its size
    std::uint64_t reserved;       // stamp of the ring's clock, unique
    std::uint64_t committed = 0;  // likewise
    Tag tag = 0;
    State state = State::kReserved;
    Event event = {};
  };

  // One ring of bytes. Positions grow for ever; a position modulo the capacity is an offset.
  struct Segment {
    PinnedBlock memory;
    std::uint64_t head = 0;         // behind the newest slot
    std::uint64_t tail = 0;         // where the oldest live slot begins
    std::uint64_t first_index = 0;  // of entries.front()
    std::deque<Entry> entries;      // in the order of reservation

    std::size_t capacity() const noexcept { return memory.nbytes(); }
    std::size_t in_flight() const noexcept { return static_cast<std::size_t>(head - tail); }
  };

  // An entry to look at without the lock: the entry may be gone by then, its stamp is not
  // used again.
  struct Probe {
    Event event;
    std::uint64_t reserved = 0;
  };

  using Lock = std::unique_lock<std::mutex>;

  // All of these need mutex_.
  bool claim(std::size_t nbytes, Tag tag, Slot* slot);
  Entry& entry_of(const Slot& slot) noexcept;
  void settle(std::uint64_t reserved);
  void release_complete();
  std::size_t in_flight() const noexcept;
  std::size_t capacity() const noexcept;
  std::size_t limited() const noexcept;
  std::size_t room(std::size_t nbytes) const noexcept;
  template <typename Self, typename Visit>
  static void for_each_entry(Self& self, Visit visit);

  // These drop it meanwhile, and leave it dropped where they throw.
  bool make_room(Lock& lock, std::size_t nbytes, Slot* slot);
  void take_the_least(Lock& lock, std::size_t nbytes);
  bool reclaim(Lock& lock);
  bool query(Lock& lock, const Probe& probe);
  bool grow(Lock& lock, std::size_t capacity);
  bool settle_others(Lock& lock, std::size_t nbytes, bool* settled);
  bool wait_for_oldest(Lock& lock, Slot* slot);
  // Without it.
  PinnedBlock allocate(std::size_t nbytes);

  EventPool& events_;
  PinnedPool& pool_;
  const StreamRef stream_;
  UploadBudget& budget_;

  mutable std::mutex mutex_;
  // The last one is current; those before it drain. All below is guarded by mutex_.
  std::vector<std::unique_ptr<Segment>> segments_;
  std::deque<Entry> blocks_;  // slots of their own, in the order of reservation
  std::size_t counted_ = 0;   // what the budget knows of: limited()
  std::uint64_t clock_ = 0;
  std::uint64_t waits_ = 0;
  std::uint64_t waited_us_ = 0;
};

}  // namespace staging
