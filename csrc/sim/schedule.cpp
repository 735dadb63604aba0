#include "sim/schedule.h"

#include <chrono>
#include <thread>
#include <vector>

#include "sim/engine.h"
#include "sim/random.h"

namespace staging::sim {

namespace {

bool run_towards(Engine& engine, Lock& lock, const Mark& mark) {
  Stream* const stream = engine.next_towards(mark);
  if (stream == nullptr) return false;
  engine.run_head(lock, *stream);
  return true;
}

// eager and null. Work is left over only behind host functions and held streams.
class Immediate final : public Schedule {
 public:
  Immediate(Policy policy, std::uint64_t seed) : Schedule(policy, seed) {}

  void enqueued(Engine& engine, Lock& lock) override { engine.run_ready(lock); }
  void polled(Engine&, Lock&, const Mark&) override {}
  bool advance(Engine& engine, Lock& lock, const Mark& mark) override {
    return run_towards(engine, lock, mark);
  }
  void completed(Engine& engine, Lock& lock) override { engine.run_ready(lock); }
};

class Lazy final : public Schedule {
 public:
  explicit Lazy(std::uint64_t seed) : Schedule(Policy::kLazy, seed), polls_(seed % kPatience) {}

  // A poller gets there in the end, one piece at a time; but asking is not waiting, and a
  // program that asks once in a while must not be rescued by it.
  void polled(Engine& engine, Lock& lock, const Mark& mark) override {
    if (++polls_ % kPatience == 0) run_towards(engine, lock, mark);
  }
  bool advance(Engine& engine, Lock& lock, const Mark& mark) override {
    return run_towards(engine, lock, mark);
  }

 private:
  static constexpr std::uint64_t kPatience = 8;

  std::uint64_t polls_;
};

class Randomised final : public Schedule {
 public:
  explicit Randomised(std::uint64_t seed)
      : Schedule(Policy::kRandom, seed), random_(seed), calls_left_(0) {}

  void enqueued(Engine& engine, Lock& lock) override { run_some(engine, lock); }
  void polled(Engine& engine, Lock& lock, const Mark& mark) override {
    run_some(engine, lock);
    if (!mark.reached() && random_.chance(128)) run_towards(engine, lock, mark);
  }
  bool advance(Engine& engine, Lock& lock, const Mark& mark) override {
    if (random_.chance(512) && run_any(engine, lock)) return true;
    return run_towards(engine, lock, mark);
  }

 private:
  // Whether to run a piece is redrawn for every one, with odds that change from phase to
  // phase: some phases are nearly lazy, some nearly eager.
  void run_some(Engine& engine, Lock& lock) {
    if (calls_left_-- == 0) {
      calls_left_ = 1 + random_.below(64);
      constexpr unsigned kOdds[] = {8, 64, 256, 512, 900};
      odds_ = kOdds[random_.below(std::size(kOdds))];
    }
    while (engine.has_pending() && random_.chance(odds_)) {
      if (!run_any(engine, lock)) return;
    }
  }

  bool run_any(Engine& engine, Lock& lock) {
    engine.collect_ready(ready_);
    if (ready_.empty()) return false;
    const Ref<Stream> stream(ready_[random_.below(ready_.size())]);
    engine.run_head(lock, *stream);
    // A host function that returns at once does so before the next choice, so that the
    // schedule stays a function of the seed.
    if (stream->busy) engine.await_callback(lock, stream, std::chrono::milliseconds(2));
    return true;
  }

  Random random_;
  std::size_t calls_left_;
  unsigned odds_ = 512;
  std::vector<Stream*> ready_;
};

// Workers rather than one thread a stream: a stream occupies one while it runs, which is
// the same concurrency up to kWorkers streams, and streams may come and go by thousands.
class Threads final : public Schedule {
 public:
  explicit Threads(std::uint64_t seed)
      : Schedule(Policy::kThreads, seed), state_(std::make_shared<State>()) {}
  void retired() override { state_->stop = true; }

  void enqueued(Engine& engine, Lock&) override {
    if (!state_->started) {
      state_->started = true;
      for (std::uint64_t i = 0; i < kWorkers; ++i) {
        std::thread(&Threads::work, state_, &engine, seed() * kWorkers + i).detach();
      }
    }
    engine.notify();
  }
  void polled(Engine&, Lock&, const Mark&) override {}
  bool advance(Engine&, Lock&, const Mark&) override { return false; }
  void completed(Engine& engine, Lock&) override { engine.notify(); }

 private:
  static constexpr std::uint64_t kWorkers = 4;

  struct State {
    bool started = false;  // LOCK: the machine's
    bool stop = false;     // LOCK: the machine's
  };

  static void work(std::shared_ptr<State> state, Engine* engine, std::uint64_t seed) {
    Random random(seed);
    std::vector<Stream*> ready;
    Lock lock(engine->mutex());
    while (!state->stop) {
      engine->collect_ready(ready);
      if (ready.empty()) {
        engine->sleep(lock);
        continue;
      }
      Stream* const stream = ready[random.below(ready.size())];
      // Mostly short, now and then long enough to lose every race.
      const std::size_t bound = random.chance(64) ? 2000 : 50;
      engine->run_head(lock, *stream, std::chrono::microseconds(random.below(bound)));
    }
  }

  std::shared_ptr<State> state_;
};

}  // namespace

std::unique_ptr<Schedule> Schedule::make(Policy policy, std::uint64_t seed) {
  switch (policy) {
    case Policy::kEager:
    case Policy::kNull:
      return std::make_unique<Immediate>(policy, seed);
    case Policy::kLazy:
      return std::make_unique<Lazy>(seed);
    case Policy::kRandom:
      return std::make_unique<Randomised>(seed);
    case Policy::kThreads:
      return std::make_unique<Threads>(seed);
  }
  return nullptr;
}

}  // namespace staging::sim
