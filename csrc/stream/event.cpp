#include "stream/event.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "stream/event_pool.h"
#include "support/interrupt.h"

namespace staging {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

// A wait polls: cudaEventSynchronize cannot be interrupted. It yields while the wait is
// short, then sleeps for a tenth of what it has waited, so that it is late by a tenth at most.
constexpr microseconds kSpin{200};
constexpr microseconds kLongestSleep{1000};
constexpr microseconds kInterruptPeriod{10'000};

}  // namespace

void Event::record(StreamHandle stream) {
  node_->pool->runtime().record_event(node_->pool->device(), node_->handle, stream);
  node_->stream = stream;
}

bool Event::query() const {
  if (node_->complete.load(std::memory_order_acquire)) return true;
  if (!node_->pool->runtime().query_event(node_->pool->device(), node_->handle)) return false;
  node_->complete.store(true, std::memory_order_release);
  return true;
}

void Event::synchronize() const {
  const Clock::time_point start = Clock::now();
  Clock::time_point next_check = start + kInterruptPeriod;
  while (!query()) {
    const Clock::time_point now = Clock::now();
    if (now >= next_check) {
      throw_if_interrupted();
      next_check = now + kInterruptPeriod;
    }
    const auto waited = std::chrono::duration_cast<microseconds>(now - start);
    if (waited < kSpin) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::min(waited / 10, kLongestSleep));
    }
  }
}

void Event::wait_on(StreamRef stream) const {
  if (node_->complete.load(std::memory_order_acquire)) return;
  node_->pool->runtime().stream_wait_event(stream.device, stream.handle, node_->handle);
}

StreamRef Event::recorded_on() const noexcept {
  return {node_->pool->device(), node_->stream};
}

void Event::give_back(detail::PooledEvent* node) noexcept {
  node->pool->put_back(node);
}

}  // namespace staging
