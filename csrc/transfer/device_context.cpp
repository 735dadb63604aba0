#include "transfer/device_context.h"

#include <iterator>
#include <utility>

namespace staging {

// Both are leaked: static destructors would run after the driver's teardown.
DeviceContext::Registry& DeviceContext::registry() {
  static Registry& contexts = *new Registry();
  return contexts;
}

std::mutex& DeviceContext::registry_mutex() {
  static std::mutex& mutex = *new std::mutex();
  return mutex;
}

DeviceContext& DeviceContext::of(int device) {
  Runtime& runtime = Runtime::get();
  const std::lock_guard<std::mutex> lock(registry_mutex());
  std::unique_ptr<DeviceContext>& context = registry()[device];
  if (!context) context = std::make_unique<DeviceContext>(runtime, device);
  return *context;
}

UploadRing& DeviceContext::ring(StreamHandle stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::unique_ptr<UploadRing>& ring = rings_[stream];
  if (!ring) ring = std::make_unique<UploadRing>(events_, StreamRef{device(), stream});
  return *ring;
}

bool DeviceContext::addresses_pinned(const void* pinned) {
  Addressing known = pinned_addressing_.load(std::memory_order_relaxed);
  if (known == Addressing::kUnknown) {
    const PointerInfo info = runtime_.pointer_info(pinned);
    if (info.kind != MemoryKind::kPinned) return false;  // says nothing of the device
    known = info.device_pointer == pinned ? Addressing::kSame : Addressing::kOther;
    pinned_addressing_.store(known, std::memory_order_relaxed);
  }
  return known == Addressing::kSame;
}

std::size_t DeviceContext::trim() {
  std::vector<UploadRing*> rings;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto& [stream, ring] : rings_) rings.push_back(ring.get());
  }
  std::size_t nbytes = 0;
  for (UploadRing* ring : rings) nbytes += ring->trim();
  return nbytes;
}

void DeviceContext::retain(std::shared_ptr<void> owner, EventFrontier users) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    retained_.push_back({std::move(owner), std::move(users)});
  }
  reap();
}

void DeviceContext::retain_in_graph(StreamRef stream, std::shared_ptr<void> owner) {
  auto* owned = new GraphOwned{this, std::move(owner)};
  runtime_.retain_in_capture(
      stream.device, stream.handle,
      [](void* argument) {
        std::unique_ptr<GraphOwned> done(static_cast<GraphOwned*>(argument));
        const std::lock_guard<std::mutex> lock(done->context->mutex_);
        done->context->retained_.push_back({std::move(done->owner), {}});
      },
      owned);
}

std::size_t DeviceContext::reap() {
  // Queried without the lock; an owner's destructor may call back into the runtime.
  std::vector<Retained> held;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    held.swap(retained_);
  }
  std::erase_if(held, [&](const Retained& retained) {
    try {
      return !runtime_.context_lost() && retained.users.query();
    } catch (...) {
      return false;  // the context is lost: leaked rather than reused
    }
  });
  const std::lock_guard<std::mutex> lock(mutex_);
  retained_.insert(retained_.end(), std::make_move_iterator(held.begin()),
                   std::make_move_iterator(held.end()));
  return retained_.size();
}

UploadRingStats DeviceContext::ring_stats() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  UploadRingStats sum;
  for (const auto& [stream, ring] : rings_) {
    const UploadRingStats stats = ring->stats();
    sum.capacity_nbytes += stats.capacity_nbytes;
    sum.in_flight_nbytes += stats.in_flight_nbytes;
    sum.in_flight_slots += stats.in_flight_slots;
    sum.waits += stats.waits;
    sum.waited_us += stats.waited_us;
  }
  return sum;
}

}  // namespace staging
