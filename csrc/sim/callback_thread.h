// The thread that calls the program back: host functions and destructors of user objects.
//
// Purpose: as in CUDA, callbacks run one after another on a thread of the runtime, so that
//   one which blocks holds up the others, but not the thread that enqueued it.
// Owner: the engine. The thread starts with the first callback and is never joined.
// Thread-safety: post() from any thread; it takes a lock of its own.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>

namespace staging::sim {

class CallbackThread {
 public:
  // Runs `callback` later. The callback may take the machine's lock.
  void post(std::function<void()> callback);
  // Whether nothing is queued or running.
  bool idle();
  // Waits until all that was posted before has run. Not from a callback.
  void flush();

 private:
  void loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;  // LOCK: mutex_
  bool started_ = false;                     // LOCK: mutex_
  bool running_ = false;                     // LOCK: mutex_
};

}  // namespace staging::sim
