#include "transfer/cost_table.h"

#include <atomic>
#include <cmath>
#include <memory>
#include <mutex>
#include <vector>

#include "support/error.h"

namespace staging {

namespace {

constexpr int kMaxDevices = 64;
std::atomic<const CostTable*> tables[kMaxDevices];

// docs/cost-table.md says where each number comes from.
constexpr CostTable kDefaults{
    .host_to_device = {{{.fixed_us = 2.3, .item_us = 0, .gb_per_s = 25},
                        {.fixed_us = 4.0, .item_us = 0.5, .gb_per_s = 6},
                        {.fixed_us = 4.5, .item_us = 0.02, .gb_per_s = 20}}},
    .device_to_host = {{{.fixed_us = 2.3, .item_us = 0, .gb_per_s = 25},
                        {.fixed_us = 4.0, .item_us = 0.5, .gb_per_s = 25},
                        {.fixed_us = 4.5, .item_us = 0.02, .gb_per_s = 20}}},
    .device_to_device = {{{.fixed_us = 2.3, .item_us = 0, .gb_per_s = 1000},
                          {.fixed_us = 4.0, .item_us = 0.5, .gb_per_s = 90},
                          {.fixed_us = 3.2, .item_us = 0.02, .gb_per_s = 1000}}},
};

void check(const MethodCost& cost) {
  STAGING_EXPECTS(std::isfinite(cost.fixed_us) && cost.fixed_us >= 0,
                  "fixed_us must be finite and >= 0, got ", cost.fixed_us);
  STAGING_EXPECTS(std::isfinite(cost.item_us) && cost.item_us >= 0,
                  "item_us must be finite and >= 0, got ", cost.item_us);
  STAGING_EXPECTS(std::isfinite(cost.gb_per_s) && cost.gb_per_s > 0,
                  "gb_per_s must be finite and > 0, got ", cost.gb_per_s);
}

}  // namespace

const CostTable::Methods& CostTable::of(CopyKind kind) const noexcept {
  switch (kind) {
    case CopyKind::kHostToDevice:
      return host_to_device;
    case CopyKind::kDeviceToHost:
      return device_to_host;
    default:
      return device_to_device;
  }
}

CostTable::Methods& CostTable::of(CopyKind kind) noexcept {
  return const_cast<Methods&>(static_cast<const CostTable&>(*this).of(kind));
}

const CostTable& CostTable::defaults() noexcept {
  return kDefaults;
}

const CostTable& CostTable::current(int device) noexcept {
  if (device < 0 || device >= kMaxDevices) return kDefaults;
  const CostTable* table = tables[device].load(std::memory_order_acquire);
  return table != nullptr ? *table : kDefaults;
}

void CostTable::set_current(int device, const CostTable& table) {
  STAGING_EXPECTS(device >= 0 && device < kMaxDevices, "device must be in 0..", kMaxDevices - 1,
                  ", got ", device);
  for (const Methods* methods :
       {&table.host_to_device, &table.device_to_host, &table.device_to_device}) {
    for (const MethodCost& cost : *methods) check(cost);
  }
  // The old one is kept: somebody may be planning with it.
  static std::mutex& mutex = *new std::mutex();
  static auto& kept = *new std::vector<std::unique_ptr<const CostTable>>();
  const std::lock_guard<std::mutex> lock(mutex);
  kept.push_back(std::make_unique<const CostTable>(table));
  tables[device].store(kept.back().get(), std::memory_order_release);
}

}  // namespace staging
