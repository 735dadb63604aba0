// The runtime events of one device, kept for reuse. Timing is off: it slows recording.
//
// Owner: the pool owns every event that it made, lent out or free. It must outlive the
//   Events; a device's pool lives as long as the process (see transfer/device_context.h).
// Thread-safety: all of it, from any thread, but for the destructor.
// Invariant: created() == idle() + lent out, where created() are those not destroyed yet. Events
// are never recorded under capture.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>

#include "stream/event.h"

namespace staging {

class EventPool {
 public:
  EventPool(Runtime& runtime, int device) noexcept : runtime_(runtime), device_(device) {}
  EventPool(const EventPool&) = delete;  // Events point to their pool
  EventPool& operator=(const EventPool&) = delete;
  // Destroys the idle events. One that is still lent out is leaked: a leak is better than a
  // dangling handle.
  ~EventPool();

  // An event that nobody else refers to. Creates one where none is idle.
  Event acquire();

  // Destroys the idle events; how many. Those of a context that is lost are leaked.
  std::size_t trim();

  Runtime& runtime() const noexcept { return runtime_; }
  int device() const noexcept { return device_; }
  std::size_t created() const;
  std::size_t idle() const;

 private:
  friend class Event;
  void put_back(detail::PooledEvent* node) noexcept;
  std::size_t destroy(detail::PooledEvent* list) noexcept;

  Runtime& runtime_;
  const int device_;
  mutable std::mutex mutex_;
  detail::PooledEvent* free_ = nullptr;  // guarded by mutex_
  std::size_t created_ = 0;              // guarded by mutex_
  std::size_t idle_ = 0;                 // guarded by mutex_
};

}  // namespace staging
