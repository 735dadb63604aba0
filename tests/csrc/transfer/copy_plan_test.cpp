#include "transfer/copy_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

namespace staging {
namespace {

constexpr MethodCost kNever{.fixed_us = 1e9, .item_us = 1e9, .gb_per_s = 1};

// One transfer costs 10 us, a launch 30 us, a batch 20 us; items in them 1 and 4 us.
constexpr CostTable::Methods kCosts{{{.fixed_us = 10, .item_us = 0, .gb_per_s = 10},
                                     {.fixed_us = 20, .item_us = 4, .gb_per_s = 10},
                                     {.fixed_us = 30, .item_us = 1, .gb_per_s = 1}}};

class CopyPlanTest : public ::testing::Test {
 protected:
  // `count` items of `nbytes`, apart from each other on both sides.
  std::vector<CopyItem> apart(std::size_t count, std::size_t nbytes) {
    std::vector<CopyItem> items;
    for (std::size_t i = 0; i < count; ++i)
      items.push_back(item(i * 2 * nbytes, i * 2 * nbytes, nbytes));
    return items;
  }
  CopyItem item(std::size_t dst, std::size_t src, std::size_t nbytes) {
    return {dst_.data() + dst, src_.data() + src, nbytes};
  }
  void plan(const std::vector<CopyItem>& items, const CostTable::Methods& costs = kCosts,
            CopyKind kind = CopyKind::kHostToDevice) {
    plan_.plan(items, kind, costs, limits_);
  }
  std::vector<CopyMethod> methods() const {
    std::vector<CopyMethod> result;
    for (const CopyPlan::Operation& operation : plan_.operations()) {
      result.push_back(operation.method);
    }
    return result;
  }

  std::vector<std::byte> src_ = std::vector<std::byte>(1 << 20);
  std::vector<std::byte> dst_ = std::vector<std::byte>(1 << 20);
  PlanLimits limits_;
  CopyPlan plan_;
};

using Methods = std::vector<CopyMethod>;

TEST_F(CopyPlanTest, NothingToMoveIsNoOperation) {
  plan({});
  EXPECT_TRUE(plan_.operations().empty());
  plan({item(0, 0, 0), item(100, 100, 0)});
  EXPECT_TRUE(plan_.operations().empty());
  EXPECT_EQ(plan_.cost_us(), 0);
}

TEST_F(CopyPlanTest, NeighboursOnBothSidesAreOneTransfer) {
  plan({item(64, 64, 64), item(0, 0, 64), item(128, 128, 32)});
  ASSERT_EQ(methods(), Methods({CopyMethod::kCopy}));
  EXPECT_EQ(plan_.items()[0].dst, dst_.data());
  EXPECT_EQ(plan_.items()[0].nbytes, 160U);
}

TEST_F(CopyPlanTest, NeighboursOnOneSideOnlyAreNotMerged) {
  plan({item(0, 0, 64), item(64, 128, 64)});
  EXPECT_EQ(plan_.items().size(), 2U);
  plan({item(0, 0, 64), item(128, 64, 64)});
  EXPECT_EQ(plan_.items().size(), 2U);
}

TEST_F(CopyPlanTest, FewItemsAreCopiedOneByOneAndMoreOfThemTogether) {
  plan(apart(2, 64));
  EXPECT_EQ(methods(), Methods({CopyMethod::kCopy, CopyMethod::kCopy}));
  plan(apart(3, 64));  // 3 * 10 against 20 + 3 * 4 and 30 + 3 * 1
  EXPECT_EQ(methods(), Methods(3, CopyMethod::kCopy));
  plan(apart(4, 64));  // 40 against 34 and 36
  EXPECT_EQ(methods(), Methods({CopyMethod::kKernel}));
  plan(apart(16, 64));
  EXPECT_EQ(methods(), Methods({CopyMethod::kKernel}));
  EXPECT_EQ(plan_.operations()[0].count, 16U);
}

TEST_F(CopyPlanTest, WhereTheKernelMayNotBeUsedTheBatchIs) {
  limits_.kernel = false;
  plan(apart(16, 64));
  EXPECT_EQ(methods(), Methods({CopyMethod::kBatch}));
  limits_.batch = false;
  plan(apart(16, 64));
  EXPECT_EQ(methods(), Methods(16, CopyMethod::kCopy));
}

TEST_F(CopyPlanTest, ALargeItemAmongSmallOnesIsATransferOfItsOwn) {
  std::vector<CopyItem> items = apart(15, 64);
  items.push_back(item(100'000, 100'000, 500'000));  // 500 us through the kernel, 60 alone
  plan(items);
  ASSERT_EQ(methods(), Methods({CopyMethod::kKernel, CopyMethod::kCopy}));
  EXPECT_EQ(plan_.operations()[0].count, 15U);
  EXPECT_EQ(plan_.items_of(plan_.operations()[1])[0].nbytes, 500'000U);
}

TEST_F(CopyPlanTest, TheTableDecides) {
  CostTable::Methods costs = kCosts;
  costs[2] = kNever;
  plan(apart(16, 64), costs);
  EXPECT_EQ(methods(), Methods({CopyMethod::kBatch}));
  costs[1] = kNever;
  plan(apart(16, 64), costs);
  EXPECT_EQ(methods(), Methods(16, CopyMethod::kCopy));
}

TEST_F(CopyPlanTest, BatchesAndLaunchesAreBounded) {
  limits_.batch = false;
  limits_.kernel_items = 6;
  plan(apart(16, 64));
  ASSERT_EQ(methods(), Methods(3, CopyMethod::kKernel));
  EXPECT_EQ(plan_.operations()[0].count, 6U);
  EXPECT_EQ(plan_.operations()[2].count, 4U);
  EXPECT_EQ(plan_.operations()[2].first, 12U);
  limits_.kernel = false;
  limits_.batch = true;
  limits_.batch_items = 10;
  plan(apart(16, 64));
  EXPECT_EQ(methods(), Methods(2, CopyMethod::kBatch));
}

TEST_F(CopyPlanTest, TheCostIsTheSumOfTheOperations) {
  plan(apart(1, 1000));
  EXPECT_DOUBLE_EQ(plan_.cost_us(), 10.1);
  plan(apart(10, 1000));
  EXPECT_DOUBLE_EQ(plan_.cost_us(), 30 + 10 * 2);
}

TEST_F(CopyPlanTest, ItemsThatWriteTheSameBytesAreOrdered) {
  std::vector<CopyItem> items = apart(8, 64);
  items.push_back(item(32, 700, 64));  // over the end of the first
  plan(items);
  ASSERT_EQ(plan_.operations().size(), 2U);
  EXPECT_EQ(plan_.operations()[0].count, 8U);
  EXPECT_EQ(plan_.items_of(plan_.operations()[1])[0].dst, dst_.data() + 32);
}

TEST_F(CopyPlanTest, OnOneDeviceReadersOfWhatIsWrittenAreOrderedToo) {
  const auto move = [&](std::size_t dst, std::size_t src) {
    return CopyItem{dst_.data() + dst, dst_.data() + src, 64};
  };
  // The second reads what the first wrote; the third writes what the second reads.
  plan({move(0, 1000), move(200, 32), move(64, 2000)}, kCosts, CopyKind::kDeviceToDevice);
  EXPECT_EQ(plan_.operations().size(), 3U);
  EXPECT_EQ(plan_.items()[0].dst, dst_.data());
  EXPECT_EQ(plan_.items()[1].dst, dst_.data() + 200);
}

TEST_F(CopyPlanTest, APlanThatIsMadeAgainAllocatesNothing) {
  const std::vector<CopyItem> items = apart(64, 64);
  plan(items);
  const CopyItem* before = plan_.items().data();
  plan(items);
  EXPECT_EQ(plan_.items().data(), before);
}

TEST_F(CopyPlanTest, DisjointItemsAreNotMerged) {
  plan_.plan_disjoint(std::vector<CopyItem>{item(0, 0, 64), item(64, 64, 64)}, kCosts, limits_);
  EXPECT_EQ(plan_.items().size(), 2U);
}

// Carries a plan out as unkindly as its promises allow: what one operation holds runs in a
// random order, all of it read before any of it is written.
void carry_out(const CopyPlan& plan, std::mt19937& random) {
  for (const CopyPlan::Operation& operation : plan.operations()) {
    std::vector<CopyItem> items(plan.items_of(operation).begin(), plan.items_of(operation).end());
    std::shuffle(items.begin(), items.end(), random);
    std::vector<std::vector<std::byte>> taken;
    for (const CopyItem& item : items) {
      const auto* bytes = static_cast<const std::byte*>(item.src);
      taken.emplace_back(bytes, bytes + item.nbytes);
    }
    for (std::size_t i = 0; i < items.size(); ++i) {
      std::memcpy(items[i].dst, taken[i].data(), items[i].nbytes);
    }
  }
}

// Random items over small memories, so that they overlap often.
void compare_with_plain_loop(unsigned seed, CopyKind kind) {
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const auto pick = [&](std::size_t below) { return random() % below; };
  const bool one_memory = kind == CopyKind::kDeviceToDevice;
  constexpr std::size_t kNbytes = 512;
  std::vector<std::byte> host(kNbytes);
  std::vector<std::byte> expected(kNbytes);
  for (std::byte& byte : host) byte = static_cast<std::byte>(random());
  for (std::byte& byte : expected) byte = static_cast<std::byte>(random());
  std::vector<std::byte> actual = expected;

  std::vector<CopyItem> items;
  for (std::size_t i = 0, count = pick(20); i < count; ++i) {
    const std::size_t nbytes = pick(pick(2) == 0 ? 8 : 64);
    std::size_t dst = pick(kNbytes - nbytes);
    std::size_t src = pick(kNbytes - nbytes);
    if (!items.empty() && pick(3) == 0) {  // a neighbour of the one before
      dst = static_cast<std::size_t>(static_cast<std::byte*>(items.back().dst) - actual.data()) +
            items.back().nbytes;
      if (dst + nbytes > kNbytes) continue;
    }
    if (one_memory && src < dst + nbytes && dst < src + nbytes) continue;
    const std::byte* from = one_memory ? actual.data() : host.data();
    items.push_back({actual.data() + dst, from + src, nbytes});
    const std::byte* plain = one_memory ? expected.data() : host.data();
    std::memcpy(expected.data() + dst, plain + src, nbytes);
  }
  CostTable::Methods costs = kCosts;
  for (MethodCost& cost : costs) cost.fixed_us = static_cast<double>(pick(40));
  PlanLimits limits;
  limits.kernel = pick(4) != 0;
  limits.batch = pick(4) != 0;
  limits.kernel_items = 1 + pick(8);
  limits.batch_items = 1 + pick(8);

  CopyPlan plan;
  plan.plan(items, kind, costs, limits);
  for (const CopyPlan::Operation& operation : plan.operations()) {
    ASSERT_GT(operation.count, 0U);
    for (const CopyItem& item : plan.items_of(operation)) ASSERT_GT(item.nbytes, 0U);
    if (operation.method == CopyMethod::kCopy) ASSERT_EQ(operation.count, 1U);
    if (operation.method == CopyMethod::kBatch) {
      ASSERT_TRUE(limits.batch && operation.count <= limits.batch_items);
    }
    if (operation.method == CopyMethod::kKernel) {
      ASSERT_TRUE(limits.kernel && operation.count <= limits.kernel_items);
    }
  }
  carry_out(plan, random);
  ASSERT_EQ(actual, expected);
}

TEST(CopyPlanProperty, BetweenHostAndDeviceThePlanIsThePlainLoop) {
  for (unsigned seed = 0; seed < 3000; ++seed) {
    compare_with_plain_loop(seed, CopyKind::kHostToDevice);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(CopyPlanProperty, OnOneDeviceThePlanIsThePlainLoop) {
  for (unsigned seed = 0; seed < 3000; ++seed) {
    compare_with_plain_loop(seed, CopyKind::kDeviceToDevice);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace staging
