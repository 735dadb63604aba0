#include "ring/upload_ring.h"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <thread>
#include <utility>

#include "support/error.h"
#include "support/interrupt.h"

namespace staging {

namespace {

// A ring that holds this many copies asks for completion once in that many calls.
constexpr std::size_t kCopiesPerTurn = 32;

std::size_t align_up(std::size_t nbytes) {
  return (nbytes + UploadRing::kAlignment - 1) & ~(UploadRing::kAlignment - 1);
}

std::size_t segment_size(std::size_t nbytes) {
  return std::clamp(std::bit_ceil(nbytes), UploadRing::kFirstSegmentNbytes,
                    UploadRing::kMaxSegmentNbytes);
}

}  // namespace

UploadRing::~UploadRing() {
  budget_.give_back(counted_);
  for (std::unique_ptr<Segment>& segment : segments_) {
    std::vector<Event> gates;
    bool known = true;
    for (Entry& entry : segment->entries) {
      if (entry.state == State::kComplete) continue;
      if (entry.event) {
        gates.push_back(std::move(entry.event));
      } else {
        known = false;
      }
    }
    if (known) {
      segment->memory.release(std::move(gates));
    } else {
      segment->memory.detach();  // leaked: nothing tells when it is free
    }
  }
}

UploadRing::Slot UploadRing::reserve(std::size_t nbytes, Tag tag) {
  STAGING_EXPECTS(nbytes > 0, "nbytes must be > 0");
  if (nbytes > kMaxSlotNbytes) return reserve_block(nbytes, tag);
  nbytes = align_up(nbytes);
  Slot slot;
  bool settled = false;
  Lock lock(mutex_);
  while (!claim(nbytes, tag, &slot)) {
    // Room for many copies first: it costs pinned memory once, and then few queries.
    const std::size_t roomy = segment_size(kCopiesPerTurn * nbytes);
    const bool small = segments_.empty() || segments_.back()->capacity() < roomy;
    if (small && grow(lock, std::min(roomy, room(nbytes)))) continue;
    if (reclaim(lock) || settle_others(lock, nbytes, &settled)) continue;
    if (!make_room(lock, nbytes, &slot)) take_the_least(lock, nbytes);
  }
  return slot;
}

// The ring is full of copies in flight: makes it larger or waits. False where it can do
// neither.
bool UploadRing::make_room(Lock& lock, std::size_t nbytes, Slot* slot) {
  const std::size_t current = segments_.empty() ? 0 : segments_.back()->capacity();
  return grow(lock, std::min(segment_size(2 * current), room(nbytes))) ||
         wait_for_oldest(lock, slot);
}

// Nothing is in flight that could be waited for, and there is no memory for a segment of the usual
// size: one that the slot fills does.
void UploadRing::take_the_least(Lock& lock, std::size_t nbytes) {
  lock.unlock();
  auto segment = std::make_unique<Segment>();
  segment->memory = allocate(nbytes);
  lock.lock();
  segments_.push_back(std::move(segment));
}

// Where the pool has none, the ring's idle segments are given back for it.
PinnedBlock UploadRing::allocate(std::size_t nbytes) {
  try {
    return pool_.allocate(nbytes, stream_.device);
  } catch (const OutOfMemory&) {
    if (trim() == 0) throw;
  }
  return pool_.allocate(nbytes, stream_.device);
}

UploadRing::Slot UploadRing::reserve_block(std::size_t nbytes, Tag tag) {
  STAGING_EXPECTS(nbytes > 0, "nbytes must be > 0");
  Slot slot;
  bool settled = false;
  Lock lock(mutex_);
  while (room(nbytes) < nbytes) {
    if (reclaim(lock) || settle_others(lock, nbytes, &settled)) continue;
    if (!wait_for_oldest(lock, &slot)) break;
  }
  lock.unlock();
  auto block = std::make_shared<PinnedBlock>(allocate(nbytes));
  lock.lock();
  slot.data_ = block->bytes();
  slot.key_ = ++clock_;
  slot.block_ = std::move(block);
  blocks_.push_back({.end = nbytes, .reserved = slot.key_, .tag = tag});
  return slot;
}

void UploadRing::commit(const Slot& slot, Event event) {
  if (slot.block_ != nullptr) {
    if (event) {
      slot.block_->add_gate(event);
    } else {
      slot.block_->detach();  // leaked: nothing tells when it is free
    }
  }
  const Lock lock(mutex_);
  Entry& entry = entry_of(slot);
  entry.event = std::move(event);
  entry.state = State::kInFlight;
  entry.committed = ++clock_;
  if (slot.block_ != nullptr) {
    counted_ += entry.end;
    budget_.add(entry.end);
  }
}

void UploadRing::abandon(const Slot& slot) {
  const Lock lock(mutex_);
  entry_of(slot).state = State::kComplete;
  release_complete();
}

std::size_t UploadRing::trim() {
  Lock lock(mutex_);
  while (reclaim(lock)) {  // a fill that a later copy overtook is not settled with that one
  }
  const std::size_t before = capacity();
  std::erase_if(segments_, [](const auto& segment) { return segment->entries.empty(); });
  return before - capacity();
}

UploadRingStats UploadRing::stats() const {
  const Lock lock(mutex_);
  UploadRingStats stats;
  stats.capacity_nbytes = capacity();
  stats.in_flight_nbytes = in_flight();
  for_each_entry(*this, [&](const Entry&) { ++stats.in_flight_slots; });
  stats.waits = waits_;
  stats.waited_us = waited_us_;
  return stats;
}

UploadRingStats UploadRing::settled_stats() {
  try {
    Lock lock(mutex_);
    while (reclaim(lock)) {
    }
  } catch (const Error&) {
  }
  return stats();
}

std::size_t UploadRing::count_in_flight(Tag tag) {
  Lock lock(mutex_);
  while (reclaim(lock)) {
  }
  std::size_t count = 0;
  for_each_entry(*this, [&](const Entry& entry) {
    if (entry.tag == tag && entry.state != State::kComplete) ++count;
  });
  return count;
}

template <typename Self, typename Visit>
void UploadRing::for_each_entry(Self& self, Visit visit) {
  for (const auto& segment : self.segments_) {
    for (Entry& entry : segment->entries) visit(entry);
  }
  for (auto& entry : self.blocks_) visit(entry);
}

// Takes a slot in the current segment, where one fits without touching a live one.
bool UploadRing::claim(std::size_t nbytes, Tag tag, Slot* slot) {
  if (segments_.empty()) return false;
  Segment& segment = *segments_.back();
  const std::size_t capacity = segment.capacity();
  if (nbytes > capacity) return false;
  if (segment.entries.empty()) segment.head = segment.tail = 0;
  std::uint64_t start = segment.head;
  const std::size_t offset = static_cast<std::size_t>(start % capacity);
  if (offset + nbytes > capacity) start += capacity - offset;  // a slot is contiguous
  if (start + nbytes - segment.tail > capacity) return false;
  // With what is left out at the end of the segment. Memory that is there may be from the time of a
  // higher limit.
  const std::size_t taken = static_cast<std::size_t>(start + nbytes - segment.head);
  if (!budget_.take(counted_, taken)) return false;
  try {
    segment.entries.push_back({.end = start + nbytes, .reserved = ++clock_, .tag = tag});
  } catch (...) {
    budget_.give_back(taken);
    throw;
  }
  counted_ += taken;
  segment.head = start + nbytes;
  slot->data_ = segment.memory.bytes() + start % capacity;
  slot->segment_ = &segment;
  slot->key_ = segment.first_index + segment.entries.size() - 1;
  return true;
}

UploadRing::Entry& UploadRing::entry_of(const Slot& slot) noexcept {
  if (slot.segment_ != nullptr) {
    Segment& segment = *static_cast<Segment*>(slot.segment_);
    return segment.entries[slot.key_ - segment.first_index];
  }
  return *std::find_if(blocks_.rbegin(), blocks_.rend(),
                       [&](const Entry& entry) { return entry.reserved == slot.key_; });
}

// The copy that was reserved at this stamp is complete; so is every copy that was
// committed before it was reserved.
void UploadRing::settle(std::uint64_t reserved) {
  for_each_entry(*this, [&](Entry& entry) {
    if (entry.state != State::kInFlight) return;
    if (entry.reserved == reserved || entry.committed < reserved) {
      entry.state = State::kComplete;
      entry.event = {};
    }
  });
  release_complete();
}

void UploadRing::release_complete() {
  for (const auto& segment : segments_) {
    while (!segment->entries.empty() && segment->entries.front().state == State::kComplete) {
      segment->tail = segment->entries.front().end;
      segment->entries.pop_front();
      ++segment->first_index;
    }
  }
  std::erase_if(blocks_, [](const Entry& entry) { return entry.state == State::kComplete; });
  // The pool takes its lock under ours, and never the other way round.
  const Segment* current = segments_.empty() ? nullptr : segments_.back().get();
  std::erase_if(segments_, [&](const std::unique_ptr<Segment>& segment) {
    return segment->entries.empty() && segment.get() != current;
  });
  const std::size_t now = limited();
  budget_.give_back(counted_ - now);
  counted_ = now;
}

std::size_t UploadRing::in_flight() const noexcept {
  std::size_t nbytes = 0;
  for (const auto& segment : segments_) nbytes += segment->in_flight();
  for (const Entry& entry : blocks_) nbytes += entry.end;
  return nbytes;
}

std::size_t UploadRing::capacity() const noexcept {
  std::size_t nbytes = 0;
  for (const auto& segment : segments_) nbytes += segment->capacity();
  return nbytes;
}

// What counts towards the limit: not a block that is still being filled.
std::size_t UploadRing::limited() const noexcept {
  std::size_t nbytes = 0;
  for (const auto& segment : segments_) nbytes += segment->in_flight();
  for (const Entry& entry : blocks_) {
    if (entry.state == State::kInFlight) nbytes += entry.end;
  }
  return nbytes;
}

// How much more may be given to copies now, the one at hand being of `nbytes`.
std::size_t UploadRing::room(std::size_t nbytes) const noexcept {
  std::size_t kept = 0;
  for (const auto& segment : segments_) {
    // One that holds nothing is given up when a new one comes.
    if (!segment->entries.empty()) kept += segment->capacity();
  }
  for (const Entry& entry : blocks_) {
    if (entry.state == State::kInFlight) kept += entry.end;
  }
  const std::size_t room = budget_.room(counted_, kept, nbytes);
  return room >= nbytes ? std::max(nbytes, room & ~(kAlignment - 1)) : 0;
}

// The budget is used up: once, looks whether the other rings' copies still are in flight. Whether
// it did.
bool UploadRing::settle_others(Lock& lock, std::size_t nbytes, bool* settled) {
  if (*settled || !budget_.held_by_others(counted_, nbytes)) return false;
  *settled = true;
  lock.unlock();
  budget_.settle_others(*this);
  lock.lock();
  return true;
}

// Asks whether the newest copy is complete, then an older one, then the oldest; the first
// yes settles all before it. Whether anything was settled.
bool UploadRing::reclaim(Lock& lock) {
  // By stamp: copies in blocks and in segments lie in different lists.
  std::vector<std::uint64_t> gated;
  for_each_entry(*this, [&](const Entry& entry) {
    if (entry.state == State::kInFlight && entry.event) gated.push_back(entry.reserved);
  });
  if (gated.empty()) return false;
  std::sort(gated.begin(), gated.end());
  const std::array<std::uint64_t, 3> order = {gated.back(), gated[gated.size() / 2], gated.front()};
  for (std::size_t i = 0; i < std::min(order.size(), gated.size()); ++i) {
    Probe probe;
    for_each_entry(*this, [&](const Entry& entry) {
      if (entry.reserved == order[i] && entry.event) probe = {entry.event, entry.reserved};
    });
    if (!probe.event) return true;  // another thread settled it
    if (query(lock, probe)) return true;
  }
  return false;
}

bool UploadRing::query(Lock& lock, const Probe& probe) {
  lock.unlock();
  const bool complete = probe.event.query();
  lock.lock();
  if (complete) settle(probe.reserved);
  return complete;
}

// A new current segment; false where none may be added or no memory is to be had.
bool UploadRing::grow(Lock& lock, std::size_t capacity) {
  if (capacity == 0) return false;
  lock.unlock();
  auto segment = std::make_unique<Segment>();
  try {
    segment->memory = pool_.allocate(capacity, stream_.device);
  } catch (const OutOfMemory&) {
    lock.lock();
    return false;
  }
  lock.lock();
  segments_.push_back(std::move(segment));
  release_complete();
  return true;
}

// False where nothing is in flight.
bool UploadRing::wait_for_oldest(Lock& lock, Slot* slot) {
  Probe probe;
  std::uint64_t oldest = UINT64_MAX;
  bool being_filled = false;
  bool in_flight = false;
  for (const auto& segment : segments_) {
    for (const Entry& entry : segment->entries) being_filled |= entry.state == State::kReserved;
  }
  for_each_entry(*this, [&](const Entry& entry) {
    if (entry.state != State::kInFlight) return;
    in_flight = true;
    if (entry.event && entry.reserved < oldest) {
      oldest = entry.reserved;
      probe = {entry.event, entry.reserved};
    }
  });
  if (!in_flight && !being_filled) return false;
  const auto start = std::chrono::steady_clock::now();
  ++waits_;
  const std::uint64_t now = ++clock_;
  lock.unlock();
  if (probe.event) {
    probe.event.synchronize();
  } else if (in_flight) {
    // Every slot lost its event to an error; only the stream can say when they are through.
    throw_if_interrupted();
    events_.runtime().synchronize_stream(stream_.device, stream_.handle);
    probe.reserved = now;
  } else {
    // Other threads hold every slot and are about to commit them.
    throw_if_interrupted();
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  lock.lock();
  const auto waited = std::chrono::duration_cast<std::chrono::microseconds>(
      std::chrono::steady_clock::now() - start);
  waited_us_ += static_cast<std::uint64_t>(waited.count());
  ++slot->waits_;
  slot->waited_us_ += static_cast<std::uint64_t>(waited.count());
  if (probe.reserved != 0) settle(probe.reserved);
  return true;
}

}  // namespace staging
