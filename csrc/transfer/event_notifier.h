// Tells a completion queue when an event is complete, without a thread that polls.
//
// Purpose: a host function behind the event, on a private stream that waits for it, so that
//   the stream on which it was recorded is not held up by the callback.
// Owner: the notifier owns its streams and never destroys them; a callback that is still to
//   come shares the queue.
// Thread-safety: all of it, from any thread.
//
// Invariants:
//   * A callback waits for no other event than its own, and those that complete before it: a
//     lane (a private stream) takes an event behind others only where all are of one stream
//     and it was recorded last. Once kMaxLanes are busy, lanes are shared, and a stalled
//     stream may delay the notice of another (never its result).
//   * The runtime makes no callback after an error. The token then never comes; whoever waits
//     for it asks the event now and then, too.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "stream/event.h"
#include "transfer/completion_queue.h"

namespace staging {

class EventNotifier {
 public:
  static constexpr std::size_t kMaxLanes = 32;

  EventNotifier(Runtime& runtime, int device) noexcept : runtime_(runtime), device_(device) {}
  EventNotifier(const EventNotifier&) = delete;  // callbacks point to its lanes
  EventNotifier& operator=(const EventNotifier&) = delete;
  ~EventNotifier();

  // `token` is pushed to `queue` once `event` is complete. `sequence` grows with the order in
  // which the events of a stream were recorded. Waits for nothing.
  void notify(const Event& event, std::uint64_t sequence, std::shared_ptr<CompletionQueue> queue,
              std::uint64_t token);
  std::size_t lanes() const;

 private:
  struct Lane {
    StreamHandle stream = nullptr;
    StreamRef source;            // of its last event; guarded by mutex_
    std::uint64_t sequence = 0;  // likewise
    std::atomic<std::size_t> pending{0};
  };
  struct Call {
    std::shared_ptr<CompletionQueue> queue;
    std::uint64_t token;
    Lane* lane;
  };
  static void run(void* call) noexcept;
  // Counts one more pending on it.
  Lane& lane_for(StreamRef source, std::uint64_t sequence);

  Runtime& runtime_;
  const int device_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Lane>> lanes_;  // guarded by mutex_
};

}  // namespace staging
