#include "sim/progress.h"

#include <chrono>
#include <thread>
#include <vector>

#include "sim/call.h"
#include "sim/config.h"
#include "sim/machine.h"
#include "sim/random.h"

namespace staging::sim {

namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kStarved = std::chrono::seconds(2);

}  // namespace

Progress& Progress::get() {
  static Progress progress;
  return progress;
}

void Progress::wake() {
  if (idle_ms_.load(std::memory_order_relaxed) < 0) {
    idle_ms_.store(config().progress_ms, std::memory_order_relaxed);
  }
  if (idle_ms() == 0) return;
  if (started_) {
    if (sleeping_) Machine::get().engine.notify();
    return;
  }
  started_ = true;
  std::thread([this] { loop(); }).detach();
}

int Progress::set_idle_ms(int idle_ms) {
  const int before = this->idle_ms() < 0 ? config().progress_ms : this->idle_ms();
  idle_ms_.store(idle_ms, std::memory_order_relaxed);
  Machine& machine = Machine::get();
  if (machine.engine.has_pending()) wake();
  machine.engine.notify();
  return before;
}

void Progress::loop() {
  Machine& machine = Machine::get();
  Engine& engine = machine.engine;
  Random random(config().seed);
  std::vector<Stream*> ready;
  Lock lock(machine.mutex);
  for (;;) {
    sleeping_ = true;
    while (!engine.has_pending() || idle_ms() == 0) engine.sleep(lock);
    sleeping_ = false;
    // Looked at in tenths, so that a wait is at most a tenth too long.
    const auto idle = std::chrono::milliseconds(idle_ms());
    std::uint64_t calls = Counters::total();
    std::uint64_t completed = machine.engine.completions();
    auto last_call = Clock::now();
    auto last_completion = last_call;
    while (engine.has_pending() && idle_ms() != 0) {
      lock.unlock();
      std::this_thread::sleep_for(idle / 10 + std::chrono::microseconds(1));
      lock.lock();
      const auto now = Clock::now();
      if (const auto n = Counters::total(); n != calls) {
        calls = n;
        last_call = now;
      }
      if (const auto n = machine.engine.completions(); n != completed) {
        completed = n;
        last_completion = now;
      }
      if (now - last_call < idle && now - last_completion < kStarved) continue;
      for (;;) {
        engine.collect_ready(ready);
        if (ready.empty() || (Counters::total() != calls && now - last_completion < kStarved))
          break;
        engine.run_head(lock, *ready[random.below(ready.size())]);
      }
      last_completion = now;
    }
  }
}

}  // namespace staging::sim
