// Host cost of the pool over a runtime that does nothing: its own bookkeeping alone.
//
//   cmake -S . -B build/bench -G Ninja -DCMAKE_BUILD_TYPE=Release -DSTAGING_BENCHMARKS=ON
//   ninja -C build/bench pinned_pool_bench && build/bench/pinned_pool_bench
#include "memory/pinned_pool.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "runtime/host_runtime.h"

namespace {

using staging::PinnedBlock;
using staging::PinnedPool;

// Of the rounds' means the median, in nanoseconds an operation.
template <typename Operation>
double nanoseconds(Operation operation) {
  constexpr int kRounds = 21;
  constexpr int kOperations = 20'000;
  std::vector<double> means;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kOperations; ++i) operation();
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
    means.push_back(took.count() / kOperations);
  }
  std::nth_element(means.begin(), means.begin() + kRounds / 2, means.end());
  return means[kRounds / 2];
}

}  // namespace

int main() {
  staging::HostRuntime runtime;
  PinnedPool pool(runtime);
  // A pool in use: lookups have something to look through.
  std::vector<PinnedBlock> held;
  for (std::size_t i = 0; i < 1000; ++i) held.push_back(pool.allocate(1 + i * 37));

  for (const std::size_t nbytes : {std::size_t{64}, std::size_t{64} << 10, std::size_t{4} << 20}) {
    const double cost = nanoseconds([&] { pool.allocate(nbytes, -1).release(); });
    std::printf("allocate and release %8zu bytes  %7.1f ns\n", nbytes, cost);
  }
  const PinnedBlock block = pool.allocate(4096);
  std::printf("record_use                           %7.1f ns\n",
              nanoseconds([&] { pool.record_use(block.data(), {-1, nullptr}); }));
  int local = 0;
  std::printf("record_use of others' memory         %7.1f ns\n",
              nanoseconds([&] { pool.record_use(&local, {-1, nullptr}); }));
  std::printf("stats                                %7.1f ns\n",
              nanoseconds([&] { (void)pool.stats(); }));
  return 0;
}
