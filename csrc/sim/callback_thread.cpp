#include "sim/callback_thread.h"

#include <thread>

#include "sim/thread_state.h"

namespace staging::sim {

void CallbackThread::post(std::function<void()> callback) {
  const std::lock_guard lock(mutex_);
  queue_.push_back(std::move(callback));
  if (!started_) {
    started_ = true;
    std::thread([this] { loop(); }).detach();
  }
  changed_.notify_all();
}

bool CallbackThread::idle() {
  const std::lock_guard lock(mutex_);
  return queue_.empty() && !running_;
}

void CallbackThread::flush() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return queue_.empty() && !running_; });
}

void CallbackThread::loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return !queue_.empty(); });
    std::function<void()> callback = std::move(queue_.front());
    queue_.pop_front();
    running_ = true;
    lock.unlock();
    callback();
    callback = nullptr;
    lock.lock();
    running_ = false;
    changed_.notify_all();
  }
}

}  // namespace staging::sim
