#include "transfer/execute.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "runtime/device_scope.h"
#include "support/error.h"
#include "support/scripted_runtime.h"

namespace staging {
namespace {

using testing::ScriptedRuntime;

constexpr MethodCost kCheap{.fixed_us = 1, .item_us = 0, .gb_per_s = 1000};
constexpr MethodCost kDear{.fixed_us = 100, .item_us = 100, .gb_per_s = 1};

CostTable::Methods preferring(CopyMethod method) {
  CostTable::Methods costs{kDear, kDear, kDear};
  costs[static_cast<std::size_t>(method)] = kCheap;
  return costs;
}

class Execute : public ::testing::Test {
 protected:
  static constexpr std::size_t kNbytes = 4096;

  Execute() : scope_(runtime_, 0) {
    stream_ = {0, runtime_.create_stream(0)};
    host_ = static_cast<std::byte*>(runtime_.allocate_pinned(0, kNbytes));
    device_ = static_cast<std::byte*>(runtime_.allocate_device(0, kNbytes));
    for (std::size_t i = 0; i < kNbytes; ++i) host_[i] = static_cast<std::byte>(i * 7);
    std::memset(device_, 0xff, kNbytes);
    for (std::size_t i = 0; i < 8; ++i) {
      items_.push_back({device_ + i * 400, host_ + i * 500, 100 + i});
    }
    runtime_.reset_calls();
  }
  ~Execute() override { runtime_.free_pinned(host_); }

  CopyPlan plan_with(CopyMethod method) {
    CopyPlan plan;
    plan.plan(items_, CopyKind::kHostToDevice, preferring(method), limits());
    return plan;
  }
  PlanLimits limits(CaptureStatus capture = CaptureStatus::kNone) {
    return limits_on(context_, stream_, capture, host_);
  }
  void expect_copied() {
    runtime_.run_all();
    for (const CopyItem& item : items_) {
      ASSERT_EQ(std::memcmp(item.dst, item.src, item.nbytes), 0);
    }
    EXPECT_EQ(runtime_.violations(), std::vector<std::string>());
  }

  ScriptedRuntime runtime_;
  DeviceScope scope_;
  DeviceContext context_{runtime_, 0};
  StreamRef stream_;
  std::byte* host_;
  std::byte* device_;
  std::vector<CopyItem> items_;
  std::size_t enqueued_ = 0;
};

TEST_F(Execute, ABatchIsOneCall) {
  execute(context_, stream_, CopyKind::kHostToDevice, plan_with(CopyMethod::kBatch), &enqueued_);
  EXPECT_EQ(runtime_.calls("copy_batch_async"), 1U);
  EXPECT_EQ(runtime_.calls("copy_async"), 0U);
  EXPECT_EQ(enqueued_, 1U);
  expect_copied();
}

TEST_F(Execute, AKernelIsOneCall) {
  execute(context_, stream_, CopyKind::kHostToDevice, plan_with(CopyMethod::kKernel), &enqueued_);
  EXPECT_EQ(runtime_.calls("launch"), 1U);
  EXPECT_EQ(enqueued_, 1U);
  expect_copied();
}

TEST_F(Execute, PlainCopiesAreOneCallEach) {
  execute(context_, stream_, CopyKind::kHostToDevice, plan_with(CopyMethod::kCopy), &enqueued_);
  EXPECT_EQ(runtime_.calls("copy_async"), items_.size());
  EXPECT_EQ(enqueued_, items_.size());
  expect_copied();
}

TEST_F(Execute, WhereTheRuntimeHasNoBatchesItCopiesOneByOne) {
  const CopyPlan plan = plan_with(CopyMethod::kBatch);
  stream_.handle = nullptr;  // the legacy stream
  execute(context_, stream_, CopyKind::kHostToDevice, plan, &enqueued_);
  EXPECT_EQ(runtime_.calls("copy_async"), items_.size());
  expect_copied();
}

TEST_F(Execute, NoBatchIsPlannedOnTheLegacyStreamNorUnderCapture) {
  EXPECT_TRUE(limits().batch);
  EXPECT_FALSE(limits(CaptureStatus::kActive).batch);
  stream_.handle = nullptr;
  EXPECT_FALSE(limits().batch);
}

TEST_F(Execute, TheDeviceIsAskedOnceHowItSeesPinnedMemory) {
  EXPECT_TRUE(limits().kernel);
  EXPECT_TRUE(limits().kernel);
  EXPECT_EQ(runtime_.calls("pointer_info"), 1U);
}

TEST_F(Execute, NoKernelIsPlannedForMemoryThatTheDeviceDoesNotSee) {
  DeviceContext context(runtime_, 1);
  int pageable = 0;
  EXPECT_FALSE(limits_on(context, {1, nullptr}, CaptureStatus::kNone, &pageable).kernel);
}

TEST_F(Execute, PageableMemorySaysNothingAboutTheDevice) {
  int pageable = 0;
  EXPECT_FALSE(limits_on(context_, stream_, CaptureStatus::kNone, &pageable).kernel);
  EXPECT_TRUE(limits().kernel);
}

TEST_F(Execute, BetweenDeviceMemoryNobodyIsAsked) {
  EXPECT_TRUE(limits_on(context_, stream_, CaptureStatus::kNone, nullptr).kernel);
  EXPECT_EQ(runtime_.calls("pointer_info"), 0U);
}

TEST_F(Execute, AFailureSaysHowManyOperationsAreInFlight) {
  runtime_.fail("copy_async", testing::kErrorInvalidValue, 1);
  EXPECT_THROW(
      execute(context_, stream_, CopyKind::kHostToDevice, plan_with(CopyMethod::kCopy), &enqueued_),
      DeviceError);
  EXPECT_EQ(enqueued_, 0U);
  runtime_.fail("copy_async", testing::kErrorInvalidValue, 4);
  EXPECT_THROW(
      execute(context_, stream_, CopyKind::kHostToDevice, plan_with(CopyMethod::kCopy), &enqueued_),
      DeviceError);
  EXPECT_EQ(enqueued_, 3U);
}

TEST_F(Execute, AnEmptyPlanMakesNoCall) {
  execute(context_, stream_, CopyKind::kHostToDevice, CopyPlan(), &enqueued_);
  EXPECT_EQ(runtime_.calls(), 0U);
}

}  // namespace
}  // namespace staging
