// What the buffers of one device share: its events, its pinned memory and its upload rings.
//
// Owner: DeviceContext::of() keeps one per device for the life of the process and never
//   destroys it (see Runtime::get()); tests make their own over a scripted runtime.
// Thread-safety: all of it, from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "memory/pinned_pool.h"
#include "ring/upload_ring.h"
#include "stream/event_frontier.h"
#include "stream/event_pool.h"
#include "transfer/event_notifier.h"

namespace staging {

class DeviceContext {
 public:
  // With a pool of its own, for tests.
  DeviceContext(Runtime& runtime, int device);
  DeviceContext(Runtime& runtime, int device, PinnedPool& pool);
  DeviceContext(const DeviceContext&) = delete;  // buffers point to it
  DeviceContext& operator=(const DeviceContext&) = delete;

  // The process's context of `device` (-1: the host backend's). Chooses the runtime.
  static DeviceContext& of(int device);
  // Visits each context that of() has made.
  template <typename Visit>
  static void for_each(Visit visit) {
    for (DeviceContext* context : all()) visit(*context);
  }
  // What the copies of each device's streams may have in flight together, from now on.
  static void set_ring_limits(std::size_t nbytes);
  static std::size_t ring_limit();

  Runtime& runtime() const noexcept { return runtime_; }
  int device() const noexcept { return events_.device(); }
  EventPool& events() noexcept { return events_; }
  PinnedPool& pool() noexcept { return pool_; }
  EventNotifier& notifier() noexcept { return notifier_; }

  // Whether `stream` captures a CUDA graph; throws StateError where an error ended the capture.
  bool capturing(StreamRef stream) const;
  // For a new object whose device memory was filled on `stream` just now: an event behind that.
  // Throws StateError where `stream` captures a CUDA graph: each replay would fill it again, and
  // an event of a capture is of no use outside.
  Event record_fill(StreamRef stream);
  // The ring of a stream, made on first use. It is dropped when its stream is found to be
  // gone, and where it was idle when others were made: whoever keeps it, keeps its memory.
  std::shared_ptr<UploadRing> ring(StreamRef stream);
  // The same for a stream of the process's lifetime.
  UploadRing& ring(StreamHandle stream) { return *ring(StreamRef{device(), stream}); }
  // Releases what was kept for copies and graphs that are over, returns what no copy in flight
  // uses to the pool, and unpins what the pool then does not use; the bytes unpinned. Idle events
  // are destroyed.
  std::size_t trim();
  // Whether kernels of this device may use pinned memory by the address that the host has for
  // it. A property of the device; asked once, about `pinned`.
  bool addresses_pinned(const void* pinned);
  // Sums over the rings, those that were dropped included. Asks the runtime first, so that what is
  // complete does not count.
  UploadRingStats ring_stats();
  std::size_t count_in_flight(UploadRing::Tag tag);

  // Keeps `owner` alive until `users` are complete. Waits for nothing; what is found done is
  // released here and at the next call. Nothing is released once the context is lost.
  void retain(std::shared_ptr<void> owner, EventFrontier users);
  // Keeps it for the rest of the process: a copy that uses it has no event.
  void retain_forever(std::shared_ptr<void> owner);
  // Keeps `owner` alive as long as the graph that `stream` captures, and every executable
  // made of it. It is released by a later retain() or reap(): a graph's destructor may not
  // call the runtime, and an owner's might.
  void retain_in_graph(StreamRef stream, std::shared_ptr<void> owner);
  // Releases what is done, looking at `max_count` of them; how many are still held.
  std::size_t reap(std::size_t max_count = SIZE_MAX);

 private:
  using Registry = std::unordered_map<int, std::unique_ptr<DeviceContext>>;
  static Registry& registry();
  static std::mutex& registry_mutex();
  static std::vector<DeviceContext*> all();

  std::vector<std::shared_ptr<UploadRing>> rings() const;
  // Gives back what the rings, but for one, have of copies that are complete.
  void settle_rings(const UploadRing* but = nullptr) noexcept;
  void drop_idle_rings();
  void count_dropped(const UploadRing& ring);

  static constexpr std::size_t kFewRings = 8;
  enum class Addressing : std::uint8_t { kUnknown, kSame, kOther };
  struct Retained {
    std::shared_ptr<void> owner;
    EventFrontier users;
  };
  struct GraphOwned {
    DeviceContext* context;
    std::shared_ptr<void> owner;
  };

  Runtime& runtime_;
  EventPool events_;  // before the pool, whose blocks hold some
  std::unique_ptr<PinnedPool> own_pool_;
  PinnedPool& pool_;
  EventNotifier notifier_;
  UploadBudget budget_;  // before the rings
  std::atomic<Addressing> pinned_addressing_{Addressing::kUnknown};
  mutable std::mutex mutex_;
  // By handle; each for the latest stream that had it. Guarded by mutex_.
  std::unordered_map<StreamHandle, std::shared_ptr<UploadRing>> rings_;
  // At so many rings idle ones are looked for: twice what was left the last time.
  std::size_t many_rings_ = kFewRings;          // guarded by mutex_
  UploadRingStats dropped_;                     // waits of dropped rings; guarded by mutex_
  std::deque<Retained> retained_;               // guarded by mutex_
  std::vector<std::shared_ptr<void>> forever_;  // guarded by mutex_
};

}  // namespace staging
