#include "hash/pending_digests.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "hash/blake3_vectors.h"
#include "support/error.h"
#include "support/scripted_runtime.h"
#include "transfer/completion_queue.h"

namespace staging {
namespace {

using testing::blake3_pattern;
using testing::ScriptedRuntime;

class PendingDigestsTest : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(runtime_.violations(), std::vector<std::string>()); }

  PendingDigests start() {
    const std::int64_t stride = 1;
    const std::vector<std::int64_t> sizes{100'000, 300'000};
    std::vector<StridedBytes> tensors;
    for (const std::int64_t& size : sizes) {
      tensors.push_back({input_.data(), 1, {&size, 1}, {&stride, 1}});
    }
    const DeviceBlake3 plan(tensors);
    scratch_.resize(PendingDigests::scratch_nbytes(plan, 2) / 32);
    return PendingDigests(context_, pool_, {0, stream_}, plan, 2, scratch_.data());
  }

  std::vector<unsigned char> input_ = blake3_pattern(300'000);
  std::vector<kernels::Blake3Node> scratch_;
  ScriptedRuntime runtime_;
  DeviceContext context_{runtime_, 0};
  PinnedPool pool_{runtime_};
  StreamHandle stream_ = runtime_.create_stream(0);
};

TEST_F(PendingDigestsTest, AreThereOnceTheCopyBackIsDone) {
  const PendingDigests pending = start();
  EXPECT_EQ(runtime_.calls("copy_async"), 1U);
  EXPECT_EQ(runtime_.calls("record_event"), 1U);
  EXPECT_EQ(runtime_.calls("synchronize_stream"), 0U);
  EXPECT_FALSE(pending.fetch().done());
  runtime_.run_all();
  EXPECT_TRUE(pending.fetch().done());
  EXPECT_EQ(pending.digests()[0], blake3(input_.data(), 100'000));
  EXPECT_EQ(pending.digests()[1], blake3(input_.data(), 300'000));
}

TEST_F(PendingDigestsTest, CanBeWaitedFor) {
  runtime_.progress_after_queries(2);
  const PendingDigests pending = start();
  EXPECT_TRUE(pending.fetch().wait_until(PollClock::time_point::max()));
  EXPECT_TRUE(pending.fetch().done());
}

TEST_F(PendingDigestsTest, TellACompletionQueueWhenTheyAreThere) {
  const auto queue = std::make_shared<CompletionQueue>();
  {
    const PendingDigests pending = start();
    pending.fetch().notify(queue, 7);
  }  // a dropped one still tells
  EXPECT_TRUE(queue->drain().empty());
  runtime_.run_all();
  EXPECT_EQ(queue->drain(), std::vector<std::uint64_t>{7});
}

TEST_F(PendingDigestsTest, KeepTheirMemoryUntilTheCopyIsDone) {
  {
    const PendingDigests dropped = start();
  }
  EXPECT_EQ(pool_.stats().in_flight_count, 1U);
  runtime_.run_all();
  EXPECT_EQ(pool_.stats().in_flight_count, 0U);
}

TEST_F(PendingDigestsTest, AreRefusedUnderCapture) {
  runtime_.begin_capture(0, stream_);
  EXPECT_THROW(start(), StateError);
  runtime_.destroy_graph(runtime_.end_capture(0, stream_));
}

TEST_F(PendingDigestsTest, LeaveNothingBehindWhereACallFails) {
  for (const char* method :
       {"create_event", "register_pinned", "launch", "copy_async", "record_event"}) {
    ScriptedRuntime runtime;
    runtime.progress_after_queries(1);
    DeviceContext context(runtime, 0);
    PinnedPool pool(runtime);
    const std::int64_t size = 10, stride = 1;
    const StridedBytes tensor{input_.data(), 1, {&size, 1}, {&stride, 1}};
    const DeviceBlake3 plan({&tensor, 1});
    scratch_.resize(1);
    runtime.fail(method);
    EXPECT_THROW(PendingDigests(context, pool, {0, nullptr}, plan, 1, scratch_.data()), DeviceError)
        << method;
    EXPECT_EQ(pool.stats().count, 0U) << method;
    PendingDigests pending(context, pool, {0, nullptr}, plan, 1, scratch_.data());
    EXPECT_TRUE(pending.fetch().wait_until(PollClock::time_point::max()));
    EXPECT_EQ(pending.digests()[0], blake3(input_.data(), 10)) << method;
  }
}

}  // namespace
}  // namespace staging
