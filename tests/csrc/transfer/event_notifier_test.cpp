#include "transfer/event_notifier.h"

#include <gtest/gtest.h>

#include "stream/event_pool.h"
#include "support/error.h"
#include "support/scripted_runtime.h"

namespace staging {
namespace {

using Tokens = std::vector<std::uint64_t>;

class EventNotifierTest : public ::testing::Test {
 protected:
  testing::ScriptedRuntime runtime_{2};
  EventPool events_{runtime_, 0};
  EventNotifier notifier_{runtime_, 0};
  std::shared_ptr<CompletionQueue> queue_ = std::make_shared<CompletionQueue>();
  void* device_ = runtime_.allocate_device(0, 64);
  std::uint64_t sequence_ = 0;

  struct Recorded {
    Event event;
    std::uint64_t sequence;
  };
  Recorded record(StreamHandle stream) {
    runtime_.fill_async(0, device_, 1, 64, stream);
    Event event = events_.acquire();
    event.record(stream);
    return {event, ++sequence_};
  }
  void notify(const Recorded& recorded, std::uint64_t token) {
    notifier_.notify(recorded.event, recorded.sequence, queue_, token);
  }
  StreamHandle make_stream() { return runtime_.create_stream(0); }
  void TearDown() override { runtime_.run_all(); }
};

TEST_F(EventNotifierTest, TheTokenComesBehindTheEventAndHoldsUpNoStream) {
  const StreamHandle stream = make_stream();
  const Recorded recorded = record(stream);
  notify(recorded, 5);
  runtime_.fill_async(0, device_, 2, 64, stream);
  EXPECT_TRUE(queue_->drain().empty());
  EXPECT_EQ(runtime_.pending(0, stream), 3u);  // nothing was added to the caller's stream
  runtime_.run(0, stream);
  EXPECT_TRUE(queue_->drain().empty());  // that is the private stream's
  runtime_.run_all();
  EXPECT_EQ(queue_->drain(), Tokens{5});
}

TEST_F(EventNotifierTest, EventsOfOneStreamInTheirOrderShareALane) {
  const StreamHandle stream = make_stream();
  for (std::uint64_t token = 0; token < 100; ++token) notify(record(stream), token);
  EXPECT_EQ(notifier_.lanes(), 1u);
  runtime_.run_all();
  EXPECT_EQ(queue_->drain().size(), 100u);
}

TEST_F(EventNotifierTest, AnEarlierEventDoesNotWaitForALaterOne) {
  const StreamHandle stream = make_stream();
  const Recorded first = record(stream);
  const Recorded second = record(stream);
  notify(second, 2);
  notify(first, 1);
  EXPECT_EQ(notifier_.lanes(), 2u);
  runtime_.run_all();
  EXPECT_EQ(queue_->drain().size(), 2u);
}

TEST_F(EventNotifierTest, AStalledStreamDoesNotHoldUpTheNoticeOfAnother) {
  const StreamHandle stalled = make_stream(), other = make_stream();
  notify(record(stalled), 1);
  notify(record(other), 2);
  EXPECT_EQ(notifier_.lanes(), 2u);
}

TEST_F(EventNotifierTest, AnIdleLaneIsUsedAgain) {
  for (std::uint64_t token = 0; token < 10; ++token) {
    notify(record(make_stream()), token);
    runtime_.run_all();
  }
  EXPECT_EQ(notifier_.lanes(), 1u);
}

TEST_F(EventNotifierTest, LanesAreBounded) {
  for (std::uint64_t token = 0; token < 2 * EventNotifier::kMaxLanes; ++token) {
    notify(record(make_stream()), token);
  }
  EXPECT_EQ(notifier_.lanes(), EventNotifier::kMaxLanes);
  runtime_.run_all();
  EXPECT_EQ(queue_->drain().size(), 2 * EventNotifier::kMaxLanes);
}

TEST_F(EventNotifierTest, AFailureIsReportedAndTheNextNoticeComes) {
  const StreamHandle stream = make_stream();
  for (const char* method : {"create_stream", "stream_wait_event", "launch_host_function"}) {
    SCOPED_TRACE(method);
    runtime_.fail(method);
    const Recorded recorded = record(stream);
    EXPECT_THROW(notify(recorded, 1), DeviceError);
    runtime_.clear_failures();
    notify(recorded, 2);
    runtime_.run_all();
    EXPECT_EQ(queue_->drain(), Tokens{2});
  }
}

TEST_F(EventNotifierTest, TheQueueOutlivesTheLoopUntilItsLastCallback) {
  const std::weak_ptr<CompletionQueue> watch = queue_;
  notify(record(make_stream()), 1);
  queue_.reset();
  EXPECT_FALSE(watch.expired());
  runtime_.run_all();
  EXPECT_TRUE(watch.expired());
}

TEST_F(EventNotifierTest, TheCurrentDeviceIsUnchanged) {
  const Recorded recorded = record(make_stream());
  runtime_.set_device(1);
  notify(recorded, 1);
  EXPECT_EQ(runtime_.current_device(), 1);
  EXPECT_TRUE(runtime_.violations().empty());
}

}  // namespace
}  // namespace staging
