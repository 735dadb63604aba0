// Host cost of the pool over a runtime that does nothing: its own bookkeeping alone.
//
//   cmake -S . -B build/bench -G Ninja -DCMAKE_BUILD_TYPE=Release -DSTAGING_BENCHMARKS=ON
//   ninja -C build/bench pinned_pool_bench && build/bench/pinned_pool_bench
#include "memory/pinned_pool.h"

#include <cstdio>
#include <vector>

#include "measure.h"
#include "runtime/host_runtime.h"

namespace {

using staging::PinnedBlock;
using staging::PinnedPool;
using staging::benchmarks::nanoseconds;

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
