#include "ring/upload_ring.h"

#include <algorithm>
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
// How many reservations pass between two looks at whether the ring is too large.
constexpr std::uint64_t kShrinkPeriod = 4096;

std::size_t align_up(std::size_t nbytes) {
  return (nbytes + UploadRing::kAlignment - 1) & ~(UploadRing::kAlignment - 1);
}

}  // namespace

UploadRing::~UploadRing() {
  for (std::unique_ptr<Segment>& segment : segments_) {
    for (const Entry& entry : segment->entries) {
      bool complete = entry.state == State::kComplete;
      try {
        complete = complete || (entry.event && entry.event.query());
      } catch (...) {  // the context is lost
      }
      if (!complete) {
        segment.release();  // NOLINT: leaked on purpose, see the header
        break;
      }
    }
  }
}

UploadRing::Slot UploadRing::reserve(std::size_t nbytes) {
  STAGING_EXPECTS(nbytes > 0, "nbytes must be > 0");
  nbytes = align_up(nbytes);
  Slot slot;
  Lock lock(mutex_);
  largest_nbytes_ = std::max(largest_nbytes_, nbytes);
  if (++reservations_ >= kShrinkPeriod) consider_shrinking(lock);
  while (!claim(nbytes, &slot)) {
    // Room for many copies first: it costs pinned memory once, and then few queries.
    const std::size_t roomy = std::min(limit_nbytes_, kCopiesPerTurn * nbytes);
    if (capacity() < roomy && grow(lock, growth(nbytes, roomy))) continue;
    const std::size_t before = in_flight();
    reclaim(lock);
    if (in_flight() < before) continue;
    if (grow(lock, growth(nbytes, 0))) continue;
    wait_for_oldest(lock);
  }
  return slot;
}

void UploadRing::commit(const Slot& slot, Event event) {
  const Lock lock(mutex_);
  Entry& entry = entry_of(slot);
  entry.event = std::move(event);
  entry.state = State::kInFlight;
  entry.committed = ++clock_;
}

void UploadRing::abandon(const Slot& slot) {
  const Lock lock(mutex_);
  entry_of(slot).state = State::kComplete;
  pop_complete();
}

std::size_t UploadRing::trim() {
  Garbage garbage;
  std::size_t nbytes = 0;
  Lock lock(mutex_);
  reclaim(lock);
  std::erase_if(segments_, [&](std::unique_ptr<Segment>& segment) {
    if (!segment->entries.empty()) return false;
    nbytes += segment->capacity();
    garbage.push_back(std::move(segment));
    return true;
  });
  lock.unlock();
  return nbytes;
}

UploadRingStats UploadRing::stats() const {
  const Lock lock(mutex_);
  UploadRingStats stats;
  stats.capacity_nbytes = capacity();
  stats.in_flight_nbytes = in_flight();
  for (const auto& segment : segments_) stats.in_flight_slots += segment->entries.size();
  stats.waits = waits_;
  stats.waited_us = waited_us_;
  return stats;
}

// Takes a slot in the current segment, where one fits without touching a live one.
bool UploadRing::claim(std::size_t nbytes, Slot* slot) {
  if (segments_.empty()) return false;
  Segment& segment = *segments_.back();
  const std::size_t capacity = segment.capacity();
  if (nbytes > capacity) return false;
  if (segment.entries.empty()) segment.head = segment.tail = 0;
  std::uint64_t start = segment.head;
  const std::size_t offset = static_cast<std::size_t>(start % capacity);
  if (offset + nbytes > capacity) start += capacity - offset;  // a slot is contiguous
  if (start + nbytes - segment.tail > capacity) return false;
  segment.head = start + nbytes;
  segment.entries.push_back({.end = segment.head, .reserved = ++clock_});
  slot->data_ = segment.memory.bytes() + start % capacity;
  slot->segment_ = &segment;
  slot->index_ = segment.first_index + segment.entries.size() - 1;
  return true;
}

UploadRing::Entry& UploadRing::entry_of(const Slot& slot) noexcept {
  Segment& segment = *static_cast<Segment*>(slot.segment_);
  return segment.entries[slot.index_ - segment.first_index];
}

// The copy that was reserved at this stamp is complete; so is every copy that was
// committed before it was reserved.
void UploadRing::settle(std::uint64_t reserved) {
  for (const auto& segment : segments_) {
    for (Entry& entry : segment->entries) {
      if (entry.state != State::kInFlight) continue;
      if (entry.reserved == reserved || entry.committed < reserved) {
        entry.state = State::kComplete;
        entry.event = {};
      }
    }
  }
  pop_complete();
}

void UploadRing::pop_complete() {
  for (const auto& segment : segments_) {
    while (!segment->entries.empty() && segment->entries.front().state == State::kComplete) {
      segment->tail = segment->entries.front().end;
      segment->entries.pop_front();
      ++segment->first_index;
    }
  }
}

std::size_t UploadRing::in_flight() const noexcept {
  std::size_t nbytes = 0;
  for (const auto& segment : segments_) nbytes += segment->in_flight();
  return nbytes;
}

std::size_t UploadRing::capacity() const noexcept {
  std::size_t nbytes = 0;
  for (const auto& segment : segments_) nbytes += segment->capacity();
  return nbytes;
}

// How large the next segment may be: 0 where none may be added now.
std::size_t UploadRing::growth(std::size_t nbytes, std::size_t at_least) const noexcept {
  const std::size_t current = segments_.empty() ? 0 : segments_.back()->capacity();
  const std::size_t wanted =
      std::bit_ceil(std::max({kInitialNbytes, 2 * current, at_least, nbytes}));
  const std::size_t limit = std::max(limit_nbytes_, 2 * nbytes);
  // Segments that hold nothing are given up when a new one comes.
  std::size_t kept = 0;
  for (const auto& segment : segments_) {
    if (!segment->entries.empty()) kept += segment->capacity();
  }
  const std::size_t room = limit > kept ? limit - kept : 0;
  const std::size_t size = std::min(wanted, room) & ~(kAlignment - 1);
  return size >= nbytes && size > 0 ? size : 0;
}

// Asks whether the newest copy is complete, then an older one, then the oldest; the first
// yes settles all before it.
void UploadRing::reclaim(Lock& lock) {
  for (int attempt = 0; attempt < 3; ++attempt) {
    Probe probe;
    std::size_t gated = 0;
    for (const auto& segment : segments_) {
      for (const Entry& entry : segment->entries) {
        gated += entry.state == State::kInFlight && entry.event ? 1 : 0;
      }
    }
    if (gated == 0) return;
    const std::size_t wanted = attempt == 0 ? gated - 1 : attempt == 1 ? gated / 2 : 0;
    std::size_t position = 0;
    for (const auto& segment : segments_) {
      for (const Entry& entry : segment->entries) {
        if (entry.state != State::kInFlight || !entry.event) continue;
        if (position++ == wanted) probe = {entry.event, entry.reserved};
      }
    }
    if (query(lock, probe)) break;
  }
  peak_nbytes_ = std::max(peak_nbytes_, in_flight());
}

bool UploadRing::query(Lock& lock, const Probe& probe) {
  lock.unlock();
  const bool complete = probe.event.query();
  lock.lock();
  if (complete) settle(probe.reserved);
  return complete;
}

bool UploadRing::grow(Lock& lock, std::size_t capacity) {
  if (capacity == 0) return false;
  Garbage garbage;
  lock.unlock();
  auto segment = std::make_unique<Segment>(
      Segment{.memory = PinnedBuffer(events_.runtime(), stream_.device, capacity)});
  lock.lock();
  std::erase_if(segments_, [&](std::unique_ptr<Segment>& old) {
    if (!old->entries.empty()) return false;
    garbage.push_back(std::move(old));
    return true;
  });
  segments_.push_back(std::move(segment));
  lock.unlock();
  garbage.clear();
  lock.lock();
  return true;
}

void UploadRing::wait_for_oldest(Lock& lock) {
  Probe probe;
  bool being_filled = false;
  for (const auto& segment : segments_) {
    for (const Entry& entry : segment->entries) {
      being_filled |= entry.state == State::kReserved;
      if (!probe.event && entry.state == State::kInFlight && entry.event) {
        probe = {entry.event, entry.reserved};
      }
    }
  }
  const auto start = std::chrono::steady_clock::now();
  ++waits_;
  const std::uint64_t now = ++clock_;
  lock.unlock();
  if (probe.event) {
    probe.event.synchronize();
  } else if (being_filled) {
    // Other threads hold every slot and are about to commit them.
    throw_if_interrupted();
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  } else {
    // Every slot lost its event to an error; only the stream can say when they are through.
    throw_if_interrupted();
    events_.runtime().synchronize_stream(stream_.device, stream_.handle);
    probe.reserved = now;
  }
  lock.lock();
  waited_us_ += static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                               std::chrono::steady_clock::now() - start)
                                               .count());
  if (probe.reserved != 0) settle(probe.reserved);
}

void UploadRing::consider_shrinking(Lock& lock) {
  reservations_ = 0;
  reclaim(lock);
  const std::size_t peak = std::max(peak_nbytes_, in_flight());
  const std::size_t needed =
      std::max(2 * peak, std::min(limit_nbytes_, kCopiesPerTurn * largest_nbytes_));
  peak_nbytes_ = 0;
  largest_nbytes_ = 0;
  const std::size_t target = std::bit_ceil(std::max(kInitialNbytes, needed));
  if (!segments_.empty() && segments_.back()->capacity() >= 4 * target) grow(lock, target);
}

}  // namespace staging
