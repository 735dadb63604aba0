// Host cost of planning: how long it takes to find the fewest operations.
//
//   cmake -S . -B build/bench -G Ninja -DCMAKE_BUILD_TYPE=Release -DSTAGING_BENCHMARKS=ON
//   ninja -C build/bench copy_plan_bench && build/bench/copy_plan_bench
#include "transfer/copy_plan.h"

#include <algorithm>
#include <cstdio>
#include <random>
#include <vector>

#include "measure.h"

namespace {

using staging::CopyItem;
using staging::CopyKind;
using staging::CopyPlan;
using staging::CostTable;
using staging::benchmarks::nanoseconds;

constexpr int kOperations = 2'000;

std::vector<CopyItem> apart(std::vector<std::byte>& dst, std::vector<std::byte>& src,
                            std::size_t count) {
  std::vector<CopyItem> items;
  for (std::size_t i = 0; i < count; ++i) {
    items.push_back({dst.data() + i * 2048, src.data() + i * 2048, 1024});
  }
  return items;
}

}  // namespace

int main() {
  std::vector<std::byte> dst(4 << 20);
  std::vector<std::byte> src(4 << 20);
  const CostTable& table = CostTable::defaults();
  CopyPlan plan;
  std::mt19937 random(1);
  for (const std::size_t count : {1UL, 4UL, 16UL, 64UL, 256UL}) {
    std::vector<CopyItem> items = apart(dst, src, count);
    const auto per_item = [&](double total) { return total / static_cast<double>(count); };
    const double chosen =
        nanoseconds([&] { plan.plan_disjoint(items, table.host_to_device, {}); }, kOperations);
    const double sorted = nanoseconds(
        [&] { plan.plan(items, CopyKind::kHostToDevice, table.host_to_device, {}); }, kOperations);
    std::shuffle(items.begin(), items.end(), random);
    const double shuffled = nanoseconds(
        [&] { plan.plan(items, CopyKind::kHostToDevice, table.host_to_device, {}); }, kOperations);
    const double device = nanoseconds(
        [&] { plan.plan(items, CopyKind::kDeviceToDevice, table.device_to_device, {}); },
        kOperations);
    std::printf(
        "%4zu items  choose %8.1f ns (%5.1f each)  in order %8.1f (%5.1f)  shuffled %8.1f (%5.1f)"
        "  on one device %8.1f (%5.1f)\n",
        count, chosen, per_item(chosen), sorted, per_item(sorted), shuffled, per_item(shuffled),
        device, per_item(device));
  }
  return 0;
}
