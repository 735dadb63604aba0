// A cost table for the length of a test.
#pragma once

#include "transfer/cost_table.h"

namespace staging::testing {

class CostOverride {
 public:
  // All three directions of `device` prefer `method`, whatever is copied.
  CostOverride(int device, CopyMethod method)
      : device_(device), before_(CostTable::current(device)) {
    CostTable table;
    for (auto* methods : {&table.host_to_device, &table.device_to_host, &table.device_to_device}) {
      methods->fill({.fixed_us = 1000, .item_us = 1000, .gb_per_s = 1});
      (*methods)[static_cast<std::size_t>(method)] = {.fixed_us = 1, .item_us = 0, .gb_per_s = 100};
    }
    CostTable::set_current(device, table);
  }
  CostOverride(const CostOverride&) = delete;
  CostOverride& operator=(const CostOverride&) = delete;
  ~CostOverride() { CostTable::set_current(device_, before_); }

 private:
  int device_;
  CostTable before_;
};

}  // namespace staging::testing
