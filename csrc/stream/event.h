// A recorded point of a stream, shared by those who wait for it.
//
// Purpose: one event a copy in flight. An `Event` is a counted reference to a pooled
//   runtime event; the last reference returns it to its pool.
// Invariant: a runtime event is recorded only by the one who acquired it, before it is
//   shared, so it is never re-recorded while somebody may still look at it.
// Owner: the references; the EventPool owns the runtime event behind them.
// Thread-safety: references may be copied, queried and dropped on any thread; record()
//   belongs to the acquirer.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include "stream/poll.h"
#include "stream/stream_ref.h"

namespace staging {

class EventPool;

namespace detail {

struct PooledEvent {
  EventPool* pool;
  EventHandle handle;
  StreamRef stream;  // where it was recorded
  std::atomic<std::uint32_t> references{0};
  std::atomic<bool> complete{false};  // seen complete: no need to ask the runtime again
  PooledEvent* next_free = nullptr;   // in the pool's free list
};

}  // namespace detail

class Event {
 public:
  Event() noexcept = default;
  Event(const Event& other) noexcept : node_(other.node_) { retain(); }
  Event(Event&& other) noexcept : node_(std::exchange(other.node_, nullptr)) {}
  Event& operator=(Event other) noexcept {
    std::swap(node_, other.node_);
    return *this;
  }
  ~Event() { release(); }

  explicit operator bool() const noexcept { return node_ != nullptr; }
  // The same recording.
  friend bool operator==(const Event& a, const Event& b) noexcept { return a.node_ == b.node_; }

  // Records on `stream`, whose device must be the pool's and current. Once, before sharing.
  void record(StreamRef stream);
  void record(StreamHandle stream);
  // Has everything before the record run? Asks the runtime at most until the first yes.
  bool query() const;
  // Blocks the calling thread until it has, or throws Interrupted. Call without the GIL.
  void synchronize() const;
  // The same up to `deadline`; false where it has not by then.
  bool synchronize_until(PollClock::time_point deadline) const;
  // Makes `stream` wait; the host does not. Free where the event is known to be complete.
  void wait_on(StreamRef stream) const;

  StreamRef recorded_on() const noexcept;
  EventHandle handle() const noexcept { return node_->handle; }

 private:
  friend class EventPool;
  explicit Event(detail::PooledEvent* node) noexcept : node_(node) { retain(); }

  void retain() noexcept {
    if (node_ != nullptr) node_->references.fetch_add(1, std::memory_order_relaxed);
  }
  void release() noexcept {
    if (node_ != nullptr && node_->references.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      give_back(node_);
    }
  }
  static void give_back(detail::PooledEvent* node) noexcept;

  detail::PooledEvent* node_ = nullptr;
};

}  // namespace staging
