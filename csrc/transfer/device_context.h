// What the buffers of one device share: its events and its upload rings.
//
// Owner: DeviceContext::of() keeps one per device for the life of the process and never
//   destroys it (see Runtime::get()); tests make their own over a scripted runtime.
// Thread-safety: all of it, from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "ring/upload_ring.h"
#include "stream/event_frontier.h"
#include "stream/event_pool.h"

namespace staging {

class DeviceContext {
 public:
  DeviceContext(Runtime& runtime, int device) : runtime_(runtime), events_(runtime, device) {}
  DeviceContext(const DeviceContext&) = delete;  // buffers point to it
  DeviceContext& operator=(const DeviceContext&) = delete;

  // The process's context of `device` (-1: the host backend's). Chooses the runtime.
  static DeviceContext& of(int device);
  // Visits each context that of() has made.
  template <typename Visit>
  static void for_each(Visit visit) {
    const std::lock_guard<std::mutex> lock(registry_mutex());
    for (auto& [device, context] : registry()) visit(*context);
  }

  Runtime& runtime() const noexcept { return runtime_; }
  int device() const noexcept { return events_.device(); }
  EventPool& events() noexcept { return events_; }

  // The ring of a stream, made on first use. The reference stays valid.
  UploadRing& ring(StreamHandle stream);
  // Gives back the pinned memory that no copy in flight uses; the bytes unpinned.
  std::size_t trim();
  // Whether kernels of this device may use pinned memory by the address that the host has for
  // it. A property of the device; asked once, about `pinned`.
  bool addresses_pinned(const void* pinned);
  // Sums over the rings.
  UploadRingStats ring_stats() const;

  // Keeps `owner` alive until `users` are complete. Waits for nothing; what is found done is
  // released here and at the next call. Nothing is released once the context is lost.
  void retain(std::shared_ptr<void> owner, EventFrontier users);
  // Keeps `owner` alive as long as the graph that `stream` captures, and every executable
  // made of it. It is released by a later retain() or reap(): a graph's destructor may not
  // call the runtime, and an owner's might.
  void retain_in_graph(StreamRef stream, std::shared_ptr<void> owner);
  // Releases what is done; how many are still held.
  std::size_t reap();

 private:
  using Registry = std::unordered_map<int, std::unique_ptr<DeviceContext>>;
  static Registry& registry();
  static std::mutex& registry_mutex();

  Runtime& runtime_;
  EventPool events_;
  enum class Addressing : std::uint8_t { kUnknown, kSame, kOther };
  std::atomic<Addressing> pinned_addressing_{Addressing::kUnknown};
  mutable std::mutex mutex_;
  std::unordered_map<StreamHandle, std::unique_ptr<UploadRing>> rings_;  // guarded by mutex_
  struct Retained {
    std::shared_ptr<void> owner;
    EventFrontier users;
  };
  std::vector<Retained> retained_;  // guarded by mutex_
  struct GraphOwned {
    DeviceContext* context;
    std::shared_ptr<void> owner;
  };
};

}  // namespace staging
