// What a buffer makes of it is in buffer_copies_test.cpp.
#include "transfer/graph_slot.h"

#include <gtest/gtest.h>

#include <cstring>

#include "support/error.h"
#include "support/scripted_runtime.h"

namespace staging {
namespace {

class GraphSlotTest : public ::testing::Test {
 protected:
  static constexpr std::size_t kNbytes = 64;

  testing::ScriptedRuntime runtime_{1};
  DeviceContext context_{runtime_, 0};
  StreamHandle stream_ = runtime_.create_stream(0);
  char* device_ = static_cast<char*>(runtime_.allocate_device(0, kNbytes));
  std::shared_ptr<GraphSlot> slot_ = std::make_shared<GraphSlot>(context_, kNbytes);

  void SetUp() override { runtime_.progress_after_queries(4); }
  std::uint64_t capture() {
    runtime_.begin_capture(0, stream_);
    slot_->capture({0, stream_}, device_, kNbytes, nullptr);
    return runtime_.end_capture(0, stream_);
  }
  void TearDown() override {
    runtime_.run_all();
    EXPECT_TRUE(runtime_.violations().empty());
  }
};

TEST_F(GraphSlotTest, NeedsNoWaitBeforeTheFirstReplay) {
  EXPECT_FALSE(slot_->wait());
  const std::uint64_t graph = capture();
  EXPECT_FALSE(slot_->wait());
  runtime_.destroy_graph(graph);
}

TEST_F(GraphSlotTest, WaitsForEveryGraphThatReadsIt) {
  StreamHandle other = runtime_.create_stream(0);
  const std::uint64_t first = capture(), second = capture();
  slot_->write("a", 2);
  runtime_.launch_graph(first, 0, stream_);
  runtime_.launch_graph(second, 0, other);
  runtime_.run(0, stream_);
  EXPECT_TRUE(slot_->wait());
  EXPECT_EQ(runtime_.pending(0, other), 0u);
  EXPECT_FALSE(slot_->wait());
  runtime_.destroy_graph(first);
  runtime_.destroy_graph(second);
}

TEST_F(GraphSlotTest, ForgetsTheCopiesOfGraphsThatAreGone) {
  const std::uint64_t graph = capture();
  runtime_.destroy_graph(graph);
  context_.reap();
  runtime_.reset_calls();
  EXPECT_FALSE(slot_->wait());
  EXPECT_EQ(runtime_.calls("query_event"), 0u);
}

TEST_F(GraphSlotTest, NothingIsCapturedWhereTheGraphCannotRetainIt) {
  for (const char* method : {"create_event", "retain_in_capture"}) {
    SCOPED_TRACE(method);
    const std::size_t events = runtime_.live_events();
    runtime_.begin_capture(0, stream_);
    runtime_.fail(method);
    EXPECT_THROW(slot_->capture({0, stream_}, device_, kNbytes, nullptr), DeviceError);
    const std::uint64_t graph = runtime_.end_capture(0, stream_);
    runtime_.launch_graph(graph, 0, stream_);
    EXPECT_EQ(runtime_.pending(0, stream_), 0u);
    EXPECT_FALSE(slot_->poisoned());
    runtime_.destroy_graph(graph);
    context_.reap();
    EXPECT_EQ(runtime_.live_events(), events);
  }
}

TEST_F(GraphSlotTest, ACopyWithoutItsRecordPoisonsTheSlot) {
  runtime_.begin_capture(0, stream_);
  runtime_.fail("record_external_event");
  EXPECT_THROW(slot_->capture({0, stream_}, device_, kNbytes, nullptr), DeviceError);
  EXPECT_TRUE(slot_->poisoned());
  runtime_.destroy_graph(runtime_.end_capture(0, stream_));
}

}  // namespace
}  // namespace staging
