// How the host waits for the device: by asking again, ever more slowly.
//
// Purpose: the runtime's own waits cannot be interrupted, and would block Ctrl-C.
// Owner: stateless. Thread-safety: from any thread; call it without the GIL.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

#include "support/interrupt.h"

namespace staging {

using PollClock = std::chrono::steady_clock;

// Asks `complete` until it says yes; false where `deadline` passes first. Throws Interrupted,
// and what `complete` throws. It yields while the wait is short, then sleeps for a tenth of
// what it has waited, so that it is late by a tenth at most.
template <typename Complete>
bool poll_until(Complete complete, PollClock::time_point deadline = PollClock::time_point::max()) {
  using std::chrono::microseconds;
  constexpr microseconds kSpin{200};
  constexpr microseconds kLongestSleep{1000};
  constexpr microseconds kInterruptPeriod{10'000};
  if (complete()) return true;
  const PollClock::time_point start = PollClock::now();
  PollClock::time_point next_check = start + kInterruptPeriod;
  for (;;) {
    const PollClock::time_point now = PollClock::now();
    if (now >= deadline) return complete();
    if (now >= next_check) {
      throw_if_interrupted();
      next_check = now + kInterruptPeriod;
    }
    const auto waited = std::chrono::duration_cast<microseconds>(now - start);
    if (waited < kSpin) {
      std::this_thread::yield();
    } else {
      const auto left = std::chrono::duration_cast<microseconds>(deadline - now);
      std::this_thread::sleep_for(
          std::min({waited / 10, kLongestSleep, std::max(left, microseconds{1})}));
    }
    if (complete()) return true;
  }
}

}  // namespace staging
