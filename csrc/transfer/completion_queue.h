// Tokens of what has completed, for an event loop that sleeps on a file descriptor.
//
// Purpose: the one thing that a runtime's callback does. It may not take the GIL nor call the
//   runtime, so it leaves a token here and makes the descriptor readable.
// Owner: shared by the event loop and the callbacks that are still to come; the descriptor is
//   closed with the last of them, so that none writes to a number that is somebody else's.
// Thread-safety: all of it, from any thread. The lock is held for a few instructions.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

namespace staging {

class CompletionQueue {
 public:
  // Throws StateError where the process has no descriptor left.
  CompletionQueue();
  CompletionQueue(const CompletionQueue&) = delete;  // owns the descriptor
  CompletionQueue& operator=(const CompletionQueue&) = delete;
  ~CompletionQueue();

  // Readable while there are tokens; an eventfd.
  int fd() const noexcept { return fd_; }
  // Makes room for one more push(), which then cannot fail.
  void expect();
  void push(std::uint64_t token) noexcept;
  // Takes all tokens, oldest first, and makes the descriptor unreadable.
  std::vector<std::uint64_t> drain();

 private:
  int fd_;
  std::mutex mutex_;
  std::size_t expected_ = 0;           // pushes to come; guarded by mutex_
  std::vector<std::uint64_t> tokens_;  // guarded by mutex_
};

}  // namespace staging
