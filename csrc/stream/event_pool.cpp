#include "stream/event_pool.h"

namespace staging {

EventPool::~EventPool() {
  destroy(free_);
}

std::size_t EventPool::destroy(detail::PooledEvent* list) noexcept {
  std::size_t count = 0;
  for (; list != nullptr; ++count) {
    detail::PooledEvent* node = std::exchange(list, list->next_free);
    if (!runtime_.context_lost()) runtime_.destroy_event(device_, node->handle);
    delete node;
  }
  return count;
}

std::size_t EventPool::trim() {
  Runtime::check_not_forked();
  detail::PooledEvent* idle = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    idle = std::exchange(free_, nullptr);
    created_ -= std::exchange(idle_, 0);
  }
  return destroy(idle);
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
