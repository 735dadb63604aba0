// Forward progress: work runs in the end, even if nobody asks.
//
// Purpose: a program may await an eventfd or spin on a flag in pinned memory without any
//   call of the runtime. When work is pending and no call was made for a while (50 ms), a
//   thread of the stand-in runs the queues in seeded order. Work that calls keep passing by
//   for two seconds runs too.
// Owner: the process. The thread starts with the first work that is left pending, never at
//   load, and is never joined. Thread-safety: safe.
#pragma once

#include <atomic>

namespace staging::sim {

class Progress {
 public:
  static Progress& get();

  // Work became pending. Cheap when the thread is already looking. LOCK: the machine's.
  void wake();
  // 0: never. LOCK: the machine's.
  int set_idle_ms(int idle_ms);  // returns what it was
  int idle_ms() const noexcept { return idle_ms_.load(std::memory_order_relaxed); }

 private:
  void loop();

  std::atomic<int> idle_ms_{-1};  // -1: as config() says, not yet asked
  bool started_ = false;          // LOCK: the machine's
  bool sleeping_ = false;         // LOCK: the machine's; there was nothing pending
};

}  // namespace staging::sim
