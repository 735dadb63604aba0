#include "transfer/fetch.h"

#include <gtest/gtest.h>

#include "support/error.h"
#include "support/scripted_runtime.h"

namespace staging {
namespace {

class FetchTest : public ::testing::Test {
 protected:
  testing::ScriptedRuntime runtime_{1};
  DeviceContext context_{runtime_, 0};
  StreamHandle stream_ = runtime_.create_stream(0);
  void* device_ = runtime_.allocate_device(0, 64);
  std::shared_ptr<CompletionQueue> queue_ = std::make_shared<CompletionQueue>();

  Fetch fetch() {
    runtime_.fill_async(0, device_, 1, 64, stream_);
    Event event = context_.events().acquire();
    event.record(stream_);
    return Fetch(context_, event);
  }
  void TearDown() override { runtime_.run_all(); }
};

TEST_F(FetchTest, OneOfNothingIsDone) {
  const Fetch none;
  EXPECT_TRUE(none.done());
  EXPECT_TRUE(none.wait_until(PollClock::now()));
  none.notify(queue_, 3);
  EXPECT_EQ(queue_->drain(), std::vector<std::uint64_t>{3});
}

TEST_F(FetchTest, IsDoneWhenItsCopyHasRun) {
  const Fetch one = fetch();
  EXPECT_FALSE(one.done());
  EXPECT_FALSE(one.wait_until(PollClock::now()));
  runtime_.run_all();
  EXPECT_TRUE(one.wait_until(PollClock::now()));
  EXPECT_TRUE(one.done());
}

TEST_F(FetchTest, ANoticeForOneThatIsDoneComesAtOnceAndWithoutTheRuntime) {
  const Fetch one = fetch();
  runtime_.run_all();
  EXPECT_TRUE(one.done());
  runtime_.reset_calls();
  one.notify(queue_, 4);
  EXPECT_EQ(queue_->drain(), std::vector<std::uint64_t>{4});
  EXPECT_EQ(runtime_.calls(), 0u);
}

TEST_F(FetchTest, ANoticeComesWhenItIsDone) {
  const Fetch one = fetch();
  one.notify(queue_, 4);
  EXPECT_TRUE(queue_->drain().empty());
  runtime_.run_all();
  EXPECT_EQ(queue_->drain(), std::vector<std::uint64_t>{4});
}

TEST_F(FetchTest, AnErrorIsReportedToWhoeverAsks) {
  const Fetch one = fetch();
  runtime_.fail("query_event", testing::kErrorIllegalAddress, 1, 1, /*sticky=*/true);
  EXPECT_THROW(one.done(), DeviceError);
  EXPECT_THROW(one.wait_until(PollClock::now()), DeviceError);
}

}  // namespace
}  // namespace staging
