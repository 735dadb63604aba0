#include "transfer/method_timer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "runtime/device_scope.h"
#include "support/scripted_runtime.h"

namespace staging {
namespace {

class MethodTimer : public ::testing::Test {
 protected:
  static constexpr std::size_t kCount = 6;
  static constexpr std::size_t kNbytes = 100;

  MethodTimer() : scope_(runtime_, 0) {
    stream_ = runtime_.create_stream(0);
    nbytes_ = method_timer_nbytes(kCount, kNbytes);
    host_ = static_cast<std::byte*>(runtime_.allocate_pinned(0, nbytes_));
    device_ = static_cast<std::byte*>(runtime_.allocate_device(0, nbytes_));
    std::memset(host_, 1, nbytes_);
    std::memset(device_, 2, nbytes_);
    runtime_.reset_calls();
  }
  ~MethodTimer() override { runtime_.free_pinned(host_); }

  std::vector<MethodTime> time(CopyMethod method, StreamHandle stream) {
    return time_method(context_, {0, stream}, method, CopyKind::kHostToDevice, device_, host_,
                       kCount, kNbytes, 3);
  }

  testing::ScriptedRuntime runtime_{1};
  DeviceScope scope_;
  DeviceContext context_{runtime_, 0};
  StreamHandle stream_;
  std::size_t nbytes_;
  std::byte* host_;
  std::byte* device_;
};

TEST_F(MethodTimer, EachMethodIsTimedAsOftenAsAskedAndCopies) {
  for (const CopyMethod method : {CopyMethod::kCopy, CopyMethod::kBatch, CopyMethod::kKernel}) {
    std::memset(device_, 2, nbytes_);
    const std::vector<MethodTime> times = time(method, stream_);
    ASSERT_EQ(times.size(), 3U);
    for (const MethodTime& time : times) {
      EXPECT_GE(time.host_us, 0);
      EXPECT_GE(time.total_us, time.host_us);
    }
    std::size_t copied = 0;
    for (std::size_t i = 0; i < nbytes_; ++i) copied += device_[i] == std::byte{1} ? 1U : 0U;
    EXPECT_EQ(copied, kCount * kNbytes);  // and nothing between the items
  }
}

TEST_F(MethodTimer, EachMethodMakesItsOwnCalls) {
  time(CopyMethod::kCopy, stream_);
  EXPECT_EQ(runtime_.calls("copy_async"), 3 * kCount);
  time(CopyMethod::kBatch, stream_);
  EXPECT_EQ(runtime_.calls("copy_batch_async"), 3U);
  time(CopyMethod::kKernel, stream_);
  EXPECT_EQ(runtime_.calls("launch"), 3U);
  EXPECT_EQ(runtime_.calls("copy_async"), 3 * kCount);
}

TEST_F(MethodTimer, WhatTheStreamDoesNotHaveIsNotTimed) {
  EXPECT_TRUE(time(CopyMethod::kBatch, nullptr).empty());  // the legacy stream
  EXPECT_FALSE(time(CopyMethod::kKernel, nullptr).empty());
}

TEST_F(MethodTimer, RepetitionsAreEnqueuedWithoutAWait) {
  EXPECT_TRUE(repeat_method(context_, {0, stream_}, CopyMethod::kKernel, CopyKind::kHostToDevice,
                            device_, host_, kCount, kNbytes, 3));
  EXPECT_EQ(runtime_.calls("launch"), 3U);
  EXPECT_EQ(runtime_.calls("synchronize_stream"), 0U);
  runtime_.run_all();
  EXPECT_EQ(device_[0], std::byte{1});
  EXPECT_FALSE(repeat_method(context_, {0, nullptr}, CopyMethod::kBatch, CopyKind::kHostToDevice,
                             device_, host_, kCount, kNbytes, 3));
  EXPECT_EQ(runtime_.calls("copy_batch_async"), 0U);
}

}  // namespace
}  // namespace staging
