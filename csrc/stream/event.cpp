#include "stream/event.h"

#include "stream/event_pool.h"

namespace staging {

void Event::record(StreamRef stream) {
  node_->pool->runtime().record_event(node_->pool->device(), node_->handle, stream.handle);
  node_->stream = stream;
}

void Event::record(StreamHandle stream) {
  record(StreamRef{node_->pool->device(), stream});
}

bool Event::query() const {
  if (node_->complete.load(std::memory_order_acquire)) return true;
  Runtime::check_not_forked();
  if (!node_->pool->runtime().query_event(node_->pool->device(), node_->handle)) return false;
  node_->complete.store(true, std::memory_order_release);
  return true;
}

void Event::synchronize() const {
  poll_until([this] { return query(); });
}

bool Event::synchronize_until(PollClock::time_point deadline) const {
  return poll_until([this] { return query(); }, deadline);
}

void Event::wait_on(StreamRef stream) const {
  if (node_->complete.load(std::memory_order_acquire)) return;
  node_->pool->runtime().stream_wait_event(stream.device, stream.handle, node_->handle);
}

StreamRef Event::recorded_on() const noexcept {
  return node_->stream;
}

void Event::give_back(detail::PooledEvent* node) noexcept {
  // The child's copy of the pool may have been locked by a thread that it does not have.
  if (Runtime::forked()) return;
  node->pool->put_back(node);
}

}  // namespace staging
