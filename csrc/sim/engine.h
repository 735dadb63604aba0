// Runs enqueued work, in any order that the streams permit and the schedule chooses.
//
// Purpose: the one place where work runs, completes and fails.
// Owner: the machine. Thread-safety: the machine's lock, which `lock` names; it is given up
//   while work runs, so callers must not rely on anything across a call that runs work.
//
// Invariants: `pending_` holds exactly the streams whose queue is not empty; a head runs
//   only when each Mark in its `after` is reached; after an error nothing runs any more
//   and every queue is empty, but for heads that are running.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "sim/callback_thread.h"
#include "sim/schedule.h"
#include "sim/stream.h"

namespace staging::sim {

class Engine {
 public:
  explicit Engine(std::mutex& mutex) : mutex_(mutex) {}

  // Enqueues or runs; waits for nothing.
  template <typename SomeWork>
  void submit(Lock& lock, Stream& stream, SomeWork&& work, cudaError_t fault = cudaSuccess) {
    if (schedule_->immediate() && pending_.empty() && stream.holds == 0 && work.brief() &&
        work.kind() != Work::Kind::kHost && fault == cudaSuccess) [[likely]] {
      ++stream.enqueued;
      run_brief(work);
      ++stream.completed;
      return;
    }
    enqueue(
        lock, stream,
        {std::make_shared<const std::decay_t<SomeWork>>(std::forward<SomeWork>(work)), {}, fault});
  }
  void enqueue(Lock& lock, Stream& stream, Op op);
  // Makes later work of `stream` wait for `mark`.
  void wait_in_stream(Lock& lock, Stream& stream, const Mark& mark);

  // Blocks the host until `mark` is reached or the context is lost.
  void wait(Lock& lock, const Mark& mark);
  // Blocks until nothing is pending, on one device or (-1) on all.
  void drain(Lock& lock, int device);
  // A query saw that `mark` is not reached.
  void polled(Lock& lock, const Mark& mark) { schedule_->polled(*this, lock, mark); }

  // -- for schedules and manual stepping: the lock is given up while work runs ---------
  // The stream whose head must run next for `mark` to be reached; null where it runs now,
  // or a held stream is in the way.
  Stream* next_towards(const Mark& mark);
  // Streams whose head could run now, in the order in which they became pending.
  void collect_ready(std::vector<Stream*>& out);
  // `delay`: how long the work keeps the stream before it runs.
  void run_head(Lock& lock, Stream& stream,
                std::chrono::microseconds delay = std::chrono::microseconds(0));
  // Gives a host function that was started some time to return; whether it has.
  bool await_callback(Lock& lock, const Ref<Stream>& stream, std::chrono::microseconds time);
  // Runs everything that can run. Host functions are only started.
  void run_ready(Lock& lock);

  bool has_pending() const noexcept { return !pending_.empty(); }
  // Whether work that is enqueued on `stream` now may run after the call that enqueues it.
  bool may_defer(const Stream& stream) const noexcept {
    return has_pending() || stream.holds > 0 || !schedule_->immediate();
  }
  std::size_t pending_count() const noexcept;
  // Pieces of queued work that have completed so far.
  std::uint64_t completions() const noexcept { return completions_; }
  const std::vector<Stream*>& pending_streams() const noexcept { return pending_; }
  // Whether pending work may access [begin, end); describes the first such piece.
  const Work* find_user(std::uintptr_t begin, std::uintptr_t end) const;

  void hold(Lock& lock, Stream& stream, bool held);

  // Whoever waits for progress of any kind.
  void notify() { changed_.notify_all(); }
  void sleep(Lock& lock) { changed_.wait(lock); }

  // -- errors ----------------------------------------------------------------------------
  cudaError_t lost() const noexcept { return lost_; }
  // Destroys the context: drops what is queued and wakes every waiter.
  void lose(cudaError_t error);
  // Undoes it, once the heads that were running are done.
  void recover(Lock& lock);

  // -- policy ----------------------------------------------------------------------------
  Schedule& schedule() noexcept { return *schedule_; }
  // Drains first. Streams that are held keep their work.
  void set_schedule(Lock& lock, std::unique_ptr<Schedule> schedule);

  CallbackThread& callbacks() noexcept { return callbacks_; }
  std::mutex& mutex() noexcept { return mutex_; }

 private:
  void run_brief(const Work& work) {
    if (work.kind() == Work::Kind::kDevice && !schedule_->executes()) return;
    if (const cudaError_t error = work.run(); error != cudaSuccess) lose(error);
  }
  void complete_head(Stream& stream, cudaError_t error);
  // On the callback thread: runs host work, or tells it of the error. Gives the lock up.
  void call_back(Lock& lock, const Work& work);
  void unlist(Stream& stream);

  std::mutex& mutex_;
  std::condition_variable changed_;
  std::vector<Stream*> pending_;
  std::unique_ptr<Schedule> schedule_;
  // Never freed: a thread may come back to one from work that it ran without the lock.
  std::vector<std::unique_ptr<Schedule>> retired_;
  std::uint64_t completions_ = 0;
  cudaError_t lost_ = cudaSuccess;
  CallbackThread callbacks_;
};

}  // namespace staging::sim
