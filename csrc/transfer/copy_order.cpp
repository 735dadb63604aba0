#include "transfer/copy_order.h"

#include "runtime/device_scope.h"
#include "support/error.h"

namespace staging {

CopyOrder::Turn::Turn(CopyOrder& order) : order_(order) {
  const pthread_t self = pthread_self();
  const auto take = [&] {
    pthread_t nobody{};
    return order.turn().compare_exchange_strong(nobody, self, std::memory_order_acquire);
  };
  if (take()) return;
  if (order.turn().load(std::memory_order_relaxed) == self) {
    throw StateError(
        "a buffer was used from a signal handler that interrupted a call on the same buffer, or "
        "on one of its group; let the handler only set a flag");
  }
  poll_until(take);
}

void CopyOrder::Turn::wait_on(StreamRef stream) {
  order_.wait_on(stream);
  if (order_.group_ != nullptr) order_.group_->wait_on(stream);
}

void CopyOrder::Turn::wait_fill() {
  for (const CopyOrder* order : {&order_, order_.group_.get()}) {
    if (order != nullptr && order->is_fill_) order->last_.synchronize();
  }
}

void CopyOrder::Turn::done(Event event, bool uses_host) {
  {
    const std::lock_guard<std::mutex> lock(order_.mutex_);
    if (uses_host) order_.host_user_ = event;
    order_.last_ = std::move(event);
    order_.is_fill_ = false;
  }
  order_.set_ahead();
}

bool CopyOrder::Turn::lost(StreamRef stream) noexcept {
  try {
    order_.runtime_.synchronize_stream(stream.device, stream.handle);
    return true;
  } catch (...) {  // the error that led here is the one to report
    const std::lock_guard<std::mutex> lock(order_.mutex_);
    order_.lost_ = stream;
    order_.has_lost_.store(true, std::memory_order_relaxed);
    order_.set_ahead();
    return false;
  }
}

void CopyOrder::wait_on(StreamRef stream) {
  if (has_lost_.load(std::memory_order_relaxed)) settle_lost();
  // Written only by whose turn it is.
  if (last_ && !(last_.recorded_on() == stream)) last_.wait_on(stream);
}

void CopyOrder::join(StreamRef stream) {
  if (ahead_) wait_on(stream);
}

void CopyOrder::joined(bool stay) {
  if (!ahead_) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  last_ = {};  // the group's operation stands for it
  if (stay || host_user_ || lost_) return;
  ahead_ = false;
  --group_->members_ahead_;
}

void CopyOrder::host_used_by_group(Event event) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    host_user_ = std::move(event);
  }
  set_ahead();
}

void CopyOrder::host_lost_by_group(StreamRef stream) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    lost_ = stream;
    has_lost_.store(true, std::memory_order_relaxed);
  }
  set_ahead();
}

void CopyOrder::set_ahead() noexcept {
  if (group_ == nullptr || ahead_) return;
  ahead_ = true;
  ++group_->members_ahead_;
}

// Synchronizes the stream of a lost operation; throws where that fails.
void CopyOrder::settle_lost() {
  std::optional<StreamRef> lost;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    lost = lost_;
  }
  if (!lost) return;
  const DeviceScope scope(runtime_, lost->device);
  runtime_.synchronize_stream(lost->device, lost->handle);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (lost_ == lost) {
    lost_.reset();
    has_lost_.store(false, std::memory_order_relaxed);
  }
}

bool CopyOrder::host_in_flight() {
  Event user;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (lost_) return true;
    if (!host_user_) return false;
    user = host_user_;
  }
  if (!user.query()) return true;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (host_user_ == user) host_user_ = {};
  return static_cast<bool>(host_user_);
}

bool CopyOrder::wait_host() {
  Runtime::check_not_forked();
  if (has_lost_.load(std::memory_order_relaxed)) settle_lost();
  if (!host_in_flight()) return false;
  const Event user = host_user();
  if (user) user.synchronize();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (host_user_ == user) host_user_ = {};
  return true;
}

Event CopyOrder::host_user() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return host_user_;
}

bool CopyOrder::host_lost() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return lost_.has_value();
}

}  // namespace staging
