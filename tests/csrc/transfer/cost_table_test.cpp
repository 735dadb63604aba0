#include "transfer/cost_table.h"

#include <gtest/gtest.h>

#include <limits>

#include "support/error.h"

namespace staging {
namespace {

TEST(CostTable, TheCostIsLinearInItemsAndBytes) {
  const MethodCost cost{.fixed_us = 3, .item_us = 0.5, .gb_per_s = 10};
  EXPECT_DOUBLE_EQ(cost.of(0, 0), 3);
  EXPECT_DOUBLE_EQ(cost.of(4, 0), 5);
  EXPECT_DOUBLE_EQ(cost.of(1, 10'000), 4.5);  // 10 kB at 10 GB/s are 1 us
}

TEST(CostTable, ADirectionHasItsOwnCosts) {
  CostTable table = CostTable::defaults();
  table.of(CopyKind::kDeviceToHost)[0].fixed_us = 77;
  EXPECT_EQ(table.device_to_host[0].fixed_us, 77);
  EXPECT_NE(table.host_to_device[0].fixed_us, 77);
  EXPECT_EQ(&table.of(CopyKind::kHostToDevice), &table.host_to_device);
  EXPECT_EQ(&table.of(CopyKind::kDeviceToDevice), &table.device_to_device);
}

TEST(CostTable, ADeviceHasTheDefaultsUntilItIsGivenATable) {
  EXPECT_EQ(&CostTable::current(5), &CostTable::defaults());
  CostTable table = CostTable::defaults();
  table.host_to_device[0].fixed_us = 9;
  CostTable::set_current(5, table);
  EXPECT_EQ(CostTable::current(5).host_to_device[0].fixed_us, 9);
  EXPECT_EQ(&CostTable::current(6), &CostTable::defaults());
  EXPECT_EQ(&CostTable::current(-1), &CostTable::defaults());
}

TEST(CostTable, ATableThatIsBeingReadStaysAsItWas) {
  CostTable table = CostTable::defaults();
  table.host_to_device[0].fixed_us = 1;
  CostTable::set_current(7, table);
  const CostTable& read = CostTable::current(7);
  table.host_to_device[0].fixed_us = 2;
  CostTable::set_current(7, table);
  EXPECT_EQ(read.host_to_device[0].fixed_us, 1);
  EXPECT_EQ(CostTable::current(7).host_to_device[0].fixed_us, 2);
}

TEST(CostTable, WhatIsNoCostIsRefusedAndTheOldTableStays) {
  const CostTable& before = CostTable::current(8);
  for (const double bad :
       {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    CostTable table = CostTable::defaults();
    table.device_to_device[2].item_us = bad;
    EXPECT_THROW(CostTable::set_current(8, table), InvalidArgument);
    table = CostTable::defaults();
    table.host_to_device[1].gb_per_s = bad;
    EXPECT_THROW(CostTable::set_current(8, table), InvalidArgument);
  }
  CostTable table = CostTable::defaults();
  table.host_to_device[0].gb_per_s = 0;
  EXPECT_THROW(CostTable::set_current(8, table), InvalidArgument);
  EXPECT_THROW(CostTable::set_current(-1, CostTable::defaults()), InvalidArgument);
  EXPECT_EQ(&CostTable::current(8), &before);
}

}  // namespace
}  // namespace staging
