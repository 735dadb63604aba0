// The order of the copies that share a host array and a device array.
//
// Purpose: copies of one pair reach the device in the order of the calls, on whatever streams
//   they are, and the host array is known to be the device's while one of them uses it.
// Owner: whoever owns the arrays (a buffer, a group). The arrays stay alive at least until
//   host_users() are complete; that is the owner's to see to.
// Thread-safety: all of it, from any thread.
//
// Invariants:
//   * One operation at a time has its turn, from its first look at the arrays until its event
//     is known. So each operation comes after all before it, and the last event stands for
//     them all.
//   * A turn is waited for without the GIL, and taking the GIL within a turn (to look for
//     Ctrl-C) blocks nobody: who holds the GIL is not waiting for a turn.
//   * An operation that was enqueued and whose event could not be had leaves its stream; what
//     comes next waits for all of that stream.
#pragma once

#include <pthread.h>

#include <atomic>
#include <mutex>
#include <optional>

#include "stream/event.h"

namespace staging {

class CopyOrder {
 public:
  explicit CopyOrder(Runtime& runtime) noexcept : runtime_(runtime) {}
  CopyOrder(const CopyOrder&) = delete;  // the order of one pair of arrays
  CopyOrder& operator=(const CopyOrder&) = delete;

  // One operation's turn. Ends with the scope; where nothing was enqueued, nothing changed.
  class Turn {
   public:
    // Waits until no other thread has its turn; throws Interrupted, StateError where this
    // thread has it already (from within a signal handler). Call without the GIL.
    explicit Turn(CopyOrder& order);
    Turn(const Turn&) = delete;  // ends once
    Turn& operator=(const Turn&) = delete;
    ~Turn() { order_.turn_.store({}, std::memory_order_release); }

    // Makes `stream`, whose device is current, wait for the operation before this one.
    void wait_on(StreamRef stream);
    // Whether an operation before this one still uses the host array. Asks the runtime.
    bool host_in_flight() { return order_.host_in_flight(); }
    // The operation was enqueued behind wait_on(), and `event` recorded behind it.
    void done(Event event, bool uses_host);
    // It was enqueued on `stream`, and no event could be recorded. Waits for the stream.
    // Where that fails too (false), later operations and waits do.
    bool lost(StreamRef stream) noexcept;

   private:
    CopyOrder& order_;
  };

  // Whether the device may still read or write the host array. Asks the runtime about what is
  // not known to be complete.
  bool host_in_flight();
  // Blocks until it does not; throws Interrupted. Whether it had to wait. Call without the GIL.
  bool wait_host();
  // For whoever keeps the host array alive: the event of the copies that use it, if any; and
  // whether there is a copy that nothing tells the end of.
  Event host_user() const;
  // The last operation, if any. Not while another thread has its turn.
  const Event& last() const noexcept { return last_; }
  bool host_lost() const;

 private:
  void settle_lost();

  Runtime& runtime_;
  std::atomic<pthread_t> turn_{};  // whose turn it is; 0: nobody's

  mutable std::mutex mutex_;
  Event last_;                     // belongs to the turn
  Event host_user_;                // the last one that uses the host array; guarded by mutex_
  std::optional<StreamRef> lost_;  // of an operation without an event; likewise
  std::atomic<bool> has_lost_{false};
};

}  // namespace staging
