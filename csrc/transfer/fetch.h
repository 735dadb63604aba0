// One device-to-host copy on its way, and how its end is learnt.
//
// Owner: a value; the destination belongs to whoever asked for the copy, and is kept alive
//   until event() is complete. Thread-safety: any thread may ask and wait.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "transfer/device_context.h"

namespace staging {

class Fetch {
 public:
  // One that is done: nothing was to be copied, or it was copied at once.
  Fetch() noexcept = default;
  // `event` was recorded behind the copy just now.
  Fetch(DeviceContext& context, Event event) noexcept
      : context_(&context),
        event_(std::move(event)),
        sequence_(next_sequence_.fetch_add(1, std::memory_order_relaxed)) {}

  const Event& event() const noexcept { return event_; }
  // Asks the runtime until the first yes; throws DeviceError where the copy failed.
  bool done() const { return !event_ || event_.query(); }
  // Blocks until it is done, or `deadline`: false. Throws Interrupted, DeviceError. Call
  // without the GIL.
  bool wait_until(PollClock::time_point deadline) const {
    return !event_ || event_.synchronize_until(deadline);
  }
  // Pushes `token` to `queue` when it is done; at once where it is. See EventNotifier.
  void notify(std::shared_ptr<CompletionQueue> queue, std::uint64_t token) const;

 private:
  static inline std::atomic<std::uint64_t> next_sequence_{0};

  DeviceContext* context_ = nullptr;
  Event event_;
  std::uint64_t sequence_ = 0;
};

}  // namespace staging
