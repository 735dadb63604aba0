// The order of the copies that share a host array and a device array.
//
// Purpose: copies of one pair reach the device in the order of the calls, on whatever streams
//   they are, and the host array is known to be the device's while one of them uses it.
// Owner: whoever owns the arrays (a buffer, a group). The arrays stay alive at least until
//   host_user() is complete; that is the owner's to see to.
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
//   * What fills the device array before the first operation is one of those: begin_behind().
//     It counts as no use of the array, whose allocator enqueued it and knows of it.
//   * Members of a group take their turns with the group: one operation of all of them at a
//     time. A member's operation comes after the group's; the group's comes after those of the
//     members that it join()s.
#pragma once

#include <pthread.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "stream/event.h"

namespace staging {

class CopyOrder {
 public:
  explicit CopyOrder(Runtime& runtime, std::shared_ptr<CopyOrder> group = nullptr) noexcept
      : runtime_(runtime), group_(std::move(group)) {}
  CopyOrder(const CopyOrder&) = delete;  // the order of one pair of arrays
  CopyOrder& operator=(const CopyOrder&) = delete;

  // `fill` was recorded behind what filled the device array: the first operation comes after it.
  // Before anything else, and before the order is shared.
  void begin_behind(Event fill) noexcept {
    last_ = std::move(fill);
    is_fill_ = static_cast<bool>(last_);
  }

  // One operation's turn. Ends with the scope; where nothing was enqueued, nothing changed.
  class Turn {
   public:
    // Waits until no other thread has its turn; throws Interrupted, StateError where this
    // thread has it already (from within a signal handler). Call without the GIL.
    explicit Turn(CopyOrder& order);
    Turn(const Turn&) = delete;  // ends once
    Turn& operator=(const Turn&) = delete;
    ~Turn() { order_.turn().store({}, std::memory_order_release); }

    // Makes `stream`, whose device is current, wait for the operation before this one.
    void wait_on(StreamRef stream);
    // For an operation that becomes part of a graph, and cannot wait by itself: blocks until
    // the device array has been filled; throws Interrupted. Call without the GIL.
    void wait_fill();
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
  // The last operation, if any; the fill is none. Not while another thread has its turn.
  Event last() const noexcept { return is_fill_ ? Event() : last_; }
  bool host_lost() const;

  // -- a group and its members; all of these within a turn of theirs -------------------------
  // Of a group: how many members have operations that it must join().
  std::size_t members_ahead() const noexcept { return members_ahead_; }
  // Of a member, before an operation of the group that concerns it: makes `stream` wait for
  // the member's own operations.
  void join(StreamRef stream);
  // The group's operation was enqueued behind join(). Unless `stay`, the next one need not
  // join this member, as long as it does nothing by itself.
  void joined(bool stay);
  // An operation of the group uses this member's host array until `event`, or, where there is
  // none, as long as `stream` runs.
  void host_used_by_group(Event event);
  void host_lost_by_group(StreamRef stream);
  // The group must join this member.
  void set_ahead() noexcept;

 private:
  std::atomic<pthread_t>& turn() noexcept { return group_ != nullptr ? group_->turn_ : turn_; }
  void wait_on(StreamRef stream);
  void settle_lost();

  Runtime& runtime_;
  const std::shared_ptr<CopyOrder> group_;  // null: no member
  std::atomic<pthread_t> turn_{};           // whose turn it is; 0: nobody's
  std::size_t members_ahead_ = 0;           // belongs to the turn
  bool ahead_ = false;                      // likewise; of a member

  mutable std::mutex mutex_;
  Event last_;                     // belongs to the turn
  bool is_fill_ = false;           // last_ is what begin_behind() was given; likewise
  Event host_user_;                // the last one that uses the host array; guarded by mutex_
  std::optional<StreamRef> lost_;  // of an operation without an event; guarded by mutex_
  std::atomic<bool> has_lost_{false};
};

}  // namespace staging
