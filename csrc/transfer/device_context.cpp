#include "transfer/device_context.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <utility>

#include "runtime/device_scope.h"
#include "support/error.h"

namespace staging {

namespace {

std::atomic<std::size_t> ring_limit_nbytes{UploadBudget::kDefaultLimitNbytes};

// How many retained owners a call looks at: a few, so that what is done drains faster than it
// comes.
constexpr std::size_t kGlances = 4;

}  // namespace

// Both are leaked: static destructors would run after the driver's teardown.
DeviceContext::Registry& DeviceContext::registry() {
  static Registry& contexts = *new Registry();
  return contexts;
}

std::mutex& DeviceContext::registry_mutex() {
  static std::mutex& mutex = *new std::mutex();
  return mutex;
}

std::vector<DeviceContext*> DeviceContext::all() {
  std::vector<DeviceContext*> contexts;
  const std::lock_guard<std::mutex> lock(registry_mutex());
  for (const auto& [device, context] : registry()) contexts.push_back(context.get());
  return contexts;
}

DeviceContext::DeviceContext(Runtime& runtime, int device)
    : runtime_(runtime),
      events_(runtime, device),
      own_pool_(std::make_unique<PinnedPool>(runtime)),
      pool_(*own_pool_),
      notifier_(runtime, device),
      budget_(ring_limit_nbytes.load(), [this](const UploadRing& ring) { settle_rings(&ring); }) {}

DeviceContext::DeviceContext(Runtime& runtime, int device, PinnedPool& pool)
    : runtime_(runtime),
      events_(runtime, device),
      pool_(pool),
      notifier_(runtime, device),
      budget_(ring_limit_nbytes.load(), [this](const UploadRing& ring) { settle_rings(&ring); }) {}

DeviceContext& DeviceContext::of(int device) {
  Runtime& runtime = Runtime::get();
  PinnedPool& pool = PinnedPool::get(runtime);
  const std::lock_guard<std::mutex> lock(registry_mutex());
  std::unique_ptr<DeviceContext>& context = registry()[device];
  if (!context) context = std::make_unique<DeviceContext>(runtime, device, pool);
  return *context;
}

void DeviceContext::set_ring_limits(std::size_t nbytes) {
  ring_limit_nbytes.store(std::max(nbytes, UploadBudget::kMinLimitNbytes));
  for_each([](DeviceContext& context) { context.budget_.set_limit(ring_limit_nbytes.load()); });
}

std::size_t DeviceContext::ring_limit() {
  return ring_limit_nbytes.load();
}

std::shared_ptr<UploadRing> DeviceContext::ring(StreamRef stream) {
  std::shared_ptr<UploadRing> gone;  // dropped without the lock
  std::shared_ptr<UploadRing> ring;
  bool many = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::shared_ptr<UploadRing>& known = rings_[stream.handle];
    if (known == nullptr || !(known->stream() == stream)) {
      gone = std::exchange(known, std::make_shared<UploadRing>(events_, pool_, stream, budget_));
      many = rings_.size() >= many_rings_;
      if (gone != nullptr) count_dropped(*gone);
    }
    ring = known;
  }
  if (many) drop_idle_rings();
  return ring;
}

void DeviceContext::count_dropped(const UploadRing& ring) {
  const UploadRingStats stats = ring.stats();
  dropped_.waits += stats.waits;
  dropped_.waited_us += stats.waited_us;
}

void DeviceContext::settle_rings(const UploadRing* but) noexcept {
  try {
    for (const auto& ring : rings()) {
      if (ring.get() == but) continue;
      try {
        ring->trim();
      } catch (const Error&) {  // its own next copy reports that
      }
    }
  } catch (const std::bad_alloc&) {  // no memory to look at them
  }
}

// Streams of others come and go, and nothing tells when one has gone. So a ring costs nothing once
// nothing is in flight there: it is made anew for the next copy.
void DeviceContext::drop_idle_rings() {
  settle_rings();
  std::vector<std::shared_ptr<UploadRing>> idle;  // dropped without the lock
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto it = rings_.begin(); it != rings_.end();) {
    // Whoever holds it, an object or a slot, may be about to use it.
    if (it->second.use_count() == 1 && it->second->stats().in_flight_slots == 0) {
      count_dropped(*it->second);
      idle.push_back(std::move(it->second));
      it = rings_.erase(it);
    } else {
      ++it;
    }
  }
  many_rings_ = std::max(kFewRings, 2 * rings_.size());
}

std::vector<std::shared_ptr<UploadRing>> DeviceContext::rings() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::shared_ptr<UploadRing>> rings;
  rings.reserve(rings_.size());
  for (const auto& [handle, ring] : rings_) rings.push_back(ring);
  return rings;
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

bool DeviceContext::capturing(StreamRef stream) const {
  const CaptureStatus status = runtime_.capture_status(stream.device, stream.handle);
  if (status == CaptureStatus::kInvalidated) [[unlikely]] {
    throw StateError("the stream's CUDA graph capture was invalidated by an earlier error");
  }
  return status == CaptureStatus::kActive;
}

Event DeviceContext::record_fill(StreamRef stream) {
  Runtime::check_not_forked();
  const DeviceScope scope(runtime_, stream.device);
  if (capturing(stream)) {
    throw StateError(
        "a buffer, a group or a table cannot be made on a stream that captures a CUDA graph: the "
        "zeros of its device memory would become part of the graph, and every replay would clear "
        "it. Make it before the capture");
  }
  Event event = events_.acquire();
  event.record(stream);
  return event;
}

std::size_t DeviceContext::trim() {
  Runtime::check_not_forked();
  reap();
  for (const auto& ring : rings()) ring->trim();
  const std::size_t nbytes = pool_.trim();
  events_.trim();  // after the blocks that were gated by some
  return nbytes;
}

UploadRingStats DeviceContext::ring_stats() {
  UploadRingStats sum;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    sum = dropped_;
  }
  for (const auto& ring : rings()) {
    const UploadRingStats stats = ring->settled_stats();
    sum.capacity_nbytes += stats.capacity_nbytes;
    sum.in_flight_nbytes += stats.in_flight_nbytes;
    sum.in_flight_slots += stats.in_flight_slots;
    sum.waits += stats.waits;
    sum.waited_us += stats.waited_us;
  }
  return sum;
}

std::size_t DeviceContext::count_in_flight(UploadRing::Tag tag) {
  std::size_t count = 0;
  for (const auto& ring : rings()) count += ring->count_in_flight(tag);
  return count;
}

void DeviceContext::retain(std::shared_ptr<void> owner, EventFrontier users) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    retained_.push_back({std::move(owner), std::move(users)});
  }
  reap(kGlances);
}

void DeviceContext::retain_forever(std::shared_ptr<void> owner) {
  const std::lock_guard<std::mutex> lock(mutex_);
  forever_.push_back(std::move(owner));
}

void DeviceContext::retain_in_graph(StreamRef stream, std::shared_ptr<void> owner) {
  reap(kGlances);  // what graphs that are gone have left here
  auto owned = std::make_unique<GraphOwned>(GraphOwned{this, std::move(owner)});
  // On failure the runtime has called it already.
  runtime_.retain_in_capture(
      stream.device, stream.handle,
      [](void* argument) {
        std::unique_ptr<GraphOwned> done(static_cast<GraphOwned*>(argument));
        const std::lock_guard<std::mutex> lock(done->context->mutex_);
        done->context->retained_.push_back({std::move(done->owner), {}});
      },
      owned.release());
}

std::size_t DeviceContext::reap(std::size_t max_count) {
  if (Runtime::forked() || runtime_.context_lost()) max_count = 0;  // leaked, not reused
  std::vector<Retained> held;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto count = static_cast<std::ptrdiff_t>(std::min(max_count, retained_.size()));
    const auto last = retained_.begin() + count;
    held.assign(std::make_move_iterator(retained_.begin()), std::make_move_iterator(last));
    retained_.erase(retained_.begin(), last);
  }
  // Without the lock: queries are calls of the runtime, and so may be an owner's destructor.
  std::vector<Retained> done;
  for (Retained& retained : held) {
    try {
      if (retained.users.query()) done.push_back(std::move(retained));
    } catch (const Error&) {  // kept: nobody can tell that it is done
    }
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  for (Retained& retained : held) {
    // To the back, so that a stalled one does not keep the others from being looked at.
    if (retained.owner != nullptr) retained_.push_back(std::move(retained));
  }
  return retained_.size();
}

}  // namespace staging
