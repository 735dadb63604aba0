// When enqueued work runs: the policies.
//
// Purpose: a program is right if it is right under every schedule that CUDA permits. Each
//   policy is one family of such schedules.
//     eager    at once, in the enqueuing thread. For counting host cost.
//     lazy     as late as the programming model permits: when the host waits for it, and
//              then only what it waits for. Polling gets there in the end.
//     random   ready work of any stream, a seeded number of pieces at each call.
//     threads  worker threads with seeded delays; real concurrency.
//     null     as eager, but copies, fills and kernels do nothing. For host cost alone.
// Owner: the engine. Thread-safety: the machine's lock (`lock` is the caller's and may be
//   given up and taken again while work runs).
//
// lazy and random are functions of the seed and of the sequence of calls; host functions
// that do not return at once and the progress thread (progress.h) are the only sources of
// real time.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "sim/config.h"
#include "sim/stream.h"

namespace staging::sim {

class Engine;
using Lock = std::unique_lock<std::mutex>;

class Schedule {
 public:
  virtual ~Schedule() = default;

  Policy policy() const noexcept { return policy_; }
  std::uint64_t seed() const noexcept { return seed_; }
  bool immediate() const noexcept { return policy_ == Policy::kEager || policy_ == Policy::kNull; }
  bool executes() const noexcept { return policy_ != Policy::kNull; }

  // Work was enqueued.
  virtual void enqueued(Engine&, Lock&) {}
  // A query found `mark` not reached, and will say so.
  virtual void polled(Engine&, Lock&, const Mark& mark) = 0;
  // The host waits for `mark`: runs one piece of work. False where there is none that this
  // thread may run, and the caller sleeps until something completes.
  virtual bool advance(Engine&, Lock&, const Mark& mark) = 0;
  // A piece of work completed outside of the calls above (a host function).
  virtual void completed(Engine&, Lock&) {}
  // Another schedule takes over. Threads may still be in a call of this one.
  virtual void retired() {}

  static std::unique_ptr<Schedule> make(Policy policy, std::uint64_t seed);

 protected:
  Schedule(Policy policy, std::uint64_t seed) : policy_(policy), seed_(seed) {}

 private:
  Policy policy_;
  std::uint64_t seed_;
};

}  // namespace staging::sim
