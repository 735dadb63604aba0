#include "transfer/completion_queue.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "support/error.h"

namespace staging {

CompletionQueue::CompletionQueue() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (fd_ < 0) {
    throw StateError(
        detail::join_message("eventfd() failed: ", std::strerror(errno),
                             "; raise the limit of open files (ulimit -n), or wait with result()"));
  }
}

CompletionQueue::~CompletionQueue() {
  close(fd_);
}

void CompletionQueue::expect() {
  const std::lock_guard<std::mutex> lock(mutex_);
  tokens_.reserve(tokens_.size() + expected_ + 1);
  ++expected_;
}

void CompletionQueue::push(std::uint64_t token) noexcept {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    tokens_.push_back(token);  // within what expect() reserved
    if (expected_ > 0) --expected_;
  }
  const std::uint64_t one = 1;
  // The counter cannot overflow in practice, and an eventfd takes eight bytes or none.
  while (write(fd_, &one, sizeof one) < 0 && errno == EINTR) {
  }
}

std::vector<std::uint64_t> CompletionQueue::drain() {
  std::uint64_t count = 0;
  while (read(fd_, &count, sizeof count) < 0 && errno == EINTR) {
  }
  std::vector<std::uint64_t> taken;
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::uint64_t> room;
  room.reserve(expected_);
  taken = std::exchange(tokens_, std::move(room));
  return taken;
}

}  // namespace staging
