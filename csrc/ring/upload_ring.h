// The pinned slots through which the host-to-device copies of one stream pass.
//
// Purpose: a copy's bytes are put into a slot and the DMA reads the slot, so the source may
//   be overwritten at once. A slot is a reservation in a ring of bytes, as large as what is
//   copied. Each stream has a ring of its own, so a stalled one holds up only itself.
// Owner: the ring owns its pinned memory; a Slot is a claim on a part of it that ends with
//   commit() or abandon().
// Thread-safety: all of it, from any thread. No runtime call is made under the lock.
//
// Invariants:
//   * A slot is not handed out again before the event it was committed with is complete.
//   * Slots are freed in the order in which they were reserved.
//   * "Complete" spreads: the ring's clock stamps each slot when it is reserved and when it
//     is committed. A slot that was committed before another was reserved was enqueued
//     before it, on the same stream; once the later one is complete, so is the earlier.
//     So one query settles many slots.
//   * A slot that was committed without an event is freed with a later slot's.
//   * What is in flight never exceeds max(limit, two of the copy at hand): the ring grows up
//     to that and then waits for its oldest slot (backpressure). It never wraps onto one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "memory/pinned_buffer.h"
#include "stream/event_pool.h"

namespace staging {

struct UploadRingStats {
  std::size_t capacity_nbytes = 0;   // pinned by this ring
  std::size_t in_flight_nbytes = 0;  // reserved and not seen complete
  std::size_t in_flight_slots = 0;
  std::uint64_t waits = 0;  // times that a reservation had to wait for the device
  std::uint64_t waited_us = 0;
};

class UploadRing {
 public:
  static constexpr std::size_t kAlignment = 256;
  static constexpr std::size_t kInitialNbytes = 256 * 1024;
  static constexpr std::size_t kDefaultLimitNbytes = 2 * 1024 * 1024;

  class Slot {
   public:
    std::byte* data() const noexcept { return data_; }

   private:
    friend class UploadRing;
    std::byte* data_ = nullptr;
    void* segment_ = nullptr;
    std::uint64_t index_ = 0;
  };

  UploadRing(EventPool& events, StreamRef stream,
             std::size_t limit_nbytes = kDefaultLimitNbytes) noexcept
      : events_(events), stream_(stream), limit_nbytes_(limit_nbytes) {}
  UploadRing(const UploadRing&) = delete;  // slots point into it
  UploadRing& operator=(const UploadRing&) = delete;
  // Waits for nothing: memory that is still in flight is leaked.
  ~UploadRing();

  // Claims `nbytes` (> 0). Waits only where the limit is reached, then for the oldest copy;
  // throws Interrupted out of that wait, OutOfMemory or DeviceError with nothing claimed.
  // Call without the GIL.
  Slot reserve(std::size_t nbytes);
  // The copy out of the slot was enqueued on the ring's stream, and `event` recorded behind
  // it. A null event: nobody knows when it ends; the slot is freed with a later one.
  void commit(const Slot& slot, Event event);
  // Nothing was enqueued: the slot is free.
  void abandon(const Slot& slot);

  // Gives back what no copy in flight uses; the number of bytes unpinned.
  std::size_t trim();
  UploadRingStats stats() const;
  StreamRef stream() const noexcept { return stream_; }
  EventPool& events() const noexcept { return events_; }

 private:
  enum class State : std::uint8_t { kReserved, kInFlight, kComplete };

  struct Entry {
    std::uint64_t end;            // position behind the slot
    std::uint64_t reserved;       // stamp of the ring's clock, unique
    std::uint64_t committed = 0;  // likewise
    State state = State::kReserved;
    Event event = {};
  };

  // One ring of bytes. Positions grow for ever; a position modulo the capacity is an offset.
  struct Segment {
    PinnedBuffer memory;
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
  using Garbage = std::vector<std::unique_ptr<Segment>>;  // unpinned after the lock

  // All of these need mutex_.
  bool claim(std::size_t nbytes, Slot* slot);
  Entry& entry_of(const Slot& slot) noexcept;
  void settle(std::uint64_t reserved);
  void pop_complete();
  std::size_t in_flight() const noexcept;
  std::size_t capacity() const noexcept;
  std::size_t growth(std::size_t nbytes, std::size_t at_least) const noexcept;

  // These take and drop it.
  void reclaim(Lock& lock);
  bool query(Lock& lock, const Probe& probe);
  bool grow(Lock& lock, std::size_t capacity);
  void wait_for_oldest(Lock& lock);
  void consider_shrinking(Lock& lock);

  EventPool& events_;
  const StreamRef stream_;
  const std::size_t limit_nbytes_;

  mutable std::mutex mutex_;
  // The last one is current; those before it drain. All below is guarded by mutex_.
  std::vector<std::unique_ptr<Segment>> segments_;
  std::uint64_t clock_ = 0;
  std::uint64_t reservations_ = 0;  // since the last look at the ring's size
  std::size_t peak_nbytes_ = 0;     // likewise: the most that was seen in flight
  std::size_t largest_nbytes_ = 0;  // likewise: the largest slot
  std::uint64_t waits_ = 0;
  std::uint64_t waited_us_ = 0;
};

}  // namespace staging
