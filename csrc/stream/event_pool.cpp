#include "stream/event_pool.h"

namespace staging {

EventPool::~EventPool() {
  while (free_ != nullptr) {
    detail::PooledEvent* node = std::exchange(free_, free_->next_free);
    if (!runtime_.context_lost()) runtime_.destroy_event(device_, node->handle);
    delete node;
  }
}

Event EventPool::acquire() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (free_ != nullptr) {
      detail::PooledEvent* node = std::exchange(free_, free_->next_free);
      --idle_;
      node->complete.store(false, std::memory_order_relaxed);
      return Event(node);
    }
  }
  auto node = std::make_unique<detail::PooledEvent>();
  node->pool = this;
  node->handle = runtime_.create_event(device_, /*timing=*/false);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++created_;
  }
  return Event(node.release());
}

void EventPool::put_back(detail::PooledEvent* node) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  node->next_free = std::exchange(free_, node);
  ++idle_;
}

std::size_t EventPool::created() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return created_;
}

std::size_t EventPool::idle() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return idle_;
}

}  // namespace staging
