#include "ring/upload_budget.h"

#include <gtest/gtest.h>

namespace staging {
namespace {

constexpr std::size_t kLimit = UploadBudget::kMinLimitNbytes;
constexpr std::size_t kShare = UploadBudget::kShareNbytes;

TEST(UploadBudgetTest, AllRingsTogetherHaveTheLimit) {
  UploadBudget budget(kLimit);
  EXPECT_TRUE(budget.take(0, kLimit / 2));
  EXPECT_TRUE(budget.take(kLimit / 4, kLimit / 2));
  EXPECT_FALSE(budget.take(kLimit / 2, 256));
  budget.give_back(256);
  EXPECT_TRUE(budget.take(kLimit / 2, 256));
}

TEST(UploadBudgetTest, EachRingHasAShareWhateverTheOthersHave) {
  UploadBudget budget(kLimit);
  budget.add(100 * kLimit);
  EXPECT_TRUE(budget.take(0, kShare));
  EXPECT_FALSE(budget.take(kShare, 256));
  EXPECT_TRUE(budget.take(0, 10 * kShare));  // one copy, however large
  EXPECT_EQ(budget.room(0, 0, 256), kShare);
  EXPECT_EQ(budget.room(0, 0, 10 * kShare), 10 * kShare);
  EXPECT_LT(budget.room(256, 256, kShare), kShare);
}

TEST(UploadBudgetTest, ACopyLargerThanHalfTheLimitMayBeInFlightTwice) {
  UploadBudget budget(kLimit);
  EXPECT_TRUE(budget.take(0, kLimit));
  EXPECT_TRUE(budget.take(kLimit, kLimit));
  EXPECT_FALSE(budget.take(2 * kLimit, kLimit));
}

TEST(UploadBudgetTest, TellsWhetherTheOthersAreTheReason) {
  UploadBudget budget(kLimit);
  budget.add(kLimit);
  EXPECT_FALSE(budget.held_by_others(kLimit, 256));  // all of it is the ring's own
  EXPECT_TRUE(budget.held_by_others(256, 256));
  EXPECT_FALSE(UploadBudget(kLimit).held_by_others(0, kLimit));
}

}  // namespace
}  // namespace staging
