// The portable BLAKE3 of the host, and what it costs to plan digests on a device. No device
// is involved: these are host times.
//
//   cmake -S . -B build/bench -G Ninja -DCMAKE_BUILD_TYPE=Release -DSTAGING_BENCHMARKS=ON
//   ninja -C build/bench blake3_bench && build/bench/blake3_bench
#include "hash/blake3.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "hash/device_blake3.h"
#include "measure.h"

namespace {

using staging::DeviceBlake3;
using staging::StridedBytes;
using staging::benchmarks::nanoseconds;

volatile unsigned char sink;

void hash(std::size_t nbytes) {
  const std::vector<unsigned char> input(nbytes, 0x5a);
  const int operations = static_cast<int>(std::max<std::size_t>(1, (4U << 20) / (nbytes + 64)));
  const double cost =
      nanoseconds([&] { sink = staging::blake3(input.data(), input.size())[0]; }, operations);
  std::printf("hash %9zu bytes           %12.1f ns  %6.2f GB/s\n", nbytes, cost,
              static_cast<double>(nbytes) / cost);
}

// `count` transposed images of three channels; nothing of them is read.
void plan(std::size_t count, std::int64_t side) {
  const std::vector<std::int64_t> sizes{3, side, side};
  const std::vector<std::int64_t> strides{1, 3 * side, 3};
  const std::vector<StridedBytes> tensors(
      count, StridedBytes{reinterpret_cast<const void*>(0x10000), 1, sizes, strides});
  std::size_t launches = 0;
  const double cost = nanoseconds([&] { launches = DeviceBlake3(tensors).launch_count(); }, 1000);
  std::printf("plan %3zu images of %4lld²: %2zu launches %10.1f ns\n", count,
              static_cast<long long>(side), launches, cost);
}

}  // namespace

int main() {
  for (const std::size_t nbytes : {std::size_t{0}, std::size_t{64}, std::size_t{1024},
                                   std::size_t{64} << 10, std::size_t{4} << 20}) {
    hash(nbytes);
  }
  plan(1, 64);
  plan(16, 448);
  plan(64, 448);
  return 0;
}
