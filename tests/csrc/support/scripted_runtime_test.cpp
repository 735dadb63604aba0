// The tests rest on it, so it is tested too.
#include "support/scripted_runtime.h"

#include <gtest/gtest.h>

#include <array>
#include <thread>

#include "support/error.h"

namespace staging::testing {
namespace {

class ScriptedRuntimeTest : public ::testing::Test {
 protected:
  void copy(const int& from, int* to, StreamHandle stream, CopyKind kind) {
    runtime_.copy_async(0, to, &from, sizeof(int), kind, stream);
  }

  ScriptedRuntime runtime_;
  int* device_ = static_cast<int*>(runtime_.allocate_device(0, 64));
};

TEST_F(ScriptedRuntimeTest, WorkRunsWhenTheTestSaysSoAndInOrder) {
  const StreamHandle stream = runtime_.create_stream(0);
  const EventHandle event = runtime_.create_event(0, false);
  int host = 1;
  copy(host, device_, stream, CopyKind::kHostToDevice);
  runtime_.record_event(0, event, stream);
  host = 2;  // read late, as a DMA does
  EXPECT_FALSE(runtime_.query_event(0, event));
  EXPECT_TRUE(runtime_.step(0, stream));
  EXPECT_EQ(*device_, 2);
  EXPECT_FALSE(runtime_.query_event(0, event));
  EXPECT_TRUE(runtime_.step(0, stream));
  EXPECT_TRUE(runtime_.query_event(0, event));
  EXPECT_FALSE(runtime_.step(0, stream));
}

TEST_F(ScriptedRuntimeTest, AnEventThatWasNeverRecordedIsComplete) {
  EXPECT_TRUE(runtime_.query_event(0, runtime_.create_event(0, false)));
}

TEST_F(ScriptedRuntimeTest, AStreamWaitsForTheRecordThatItSaw) {
  const StreamHandle first = runtime_.create_stream(0);
  const StreamHandle second = runtime_.create_stream(0);
  const EventHandle event = runtime_.create_event(0, false);
  const int host = 7;
  copy(host, device_, first, CopyKind::kHostToDevice);
  runtime_.record_event(0, event, first);
  runtime_.stream_wait_event(0, second, event);
  copy(host, device_ + 1, second, CopyKind::kHostToDevice);
  EXPECT_FALSE(runtime_.step(0, second));
  runtime_.run(0, second);  // runs the first as far as it must
  EXPECT_EQ(device_[0], 7);
  EXPECT_EQ(device_[1], 7);
}

TEST_F(ScriptedRuntimeTest, AHostWaitGetsThereInTheEnd) {
  const StreamHandle stream = runtime_.create_stream(0);
  const EventHandle event = runtime_.create_event(0, false);
  const int host = 7;
  runtime_.record_event(0, event, stream);
  copy(host, device_, stream, CopyKind::kHostToDevice);
  runtime_.synchronize_event(0, event);
  EXPECT_TRUE(runtime_.query_event(0, event));
  EXPECT_EQ(runtime_.pending(0, stream), 1U);  // no further than it must
  runtime_.synchronize_stream(0, stream);
  EXPECT_EQ(runtime_.pending(0, stream), 0U);
}

TEST_F(ScriptedRuntimeTest, ABlockedHostWaitEndsWhenAnotherThreadRunsTheWork) {
  const StreamHandle stream = runtime_.create_stream(0);
  const EventHandle event = runtime_.create_event(0, false);
  runtime_.record_event(0, event, stream);
  runtime_.set_waits_block(true);
  std::thread waiter([&] { runtime_.synchronize_event(0, event); });
  runtime_.step(0, stream);
  waiter.join();
  EXPECT_TRUE(runtime_.query_event(0, event));
}

TEST_F(ScriptedRuntimeTest, PollingMayMakeProgress) {
  const EventHandle event = runtime_.create_event(0, false);
  runtime_.record_event(0, event, nullptr);
  runtime_.progress_after_queries(3);
  EXPECT_FALSE(runtime_.query_event(0, event));
  EXPECT_FALSE(runtime_.query_event(0, event));
  EXPECT_TRUE(runtime_.query_event(0, event));
}

TEST_F(ScriptedRuntimeTest, TheNthCallFailsAndTheNextDoesNot) {
  runtime_.fail("create_event", kErrorMemoryAllocation, 2);
  const EventHandle event = runtime_.create_event(0, false);
  EXPECT_THROW(runtime_.create_event(0, false), OutOfMemory);
  EXPECT_EQ(runtime_.live_events(), 1U);
  runtime_.destroy_event(0, event);
  EXPECT_NO_THROW(runtime_.create_event(0, false));
  EXPECT_EQ(runtime_.calls("create_event"), 3U);
}

TEST_F(ScriptedRuntimeTest, AStickyFailureIsReportedByEveryLaterCall) {
  const EventHandle event = runtime_.create_event(0, false);
  runtime_.fail("query_event", kErrorIllegalAddress, 1, 1, true);
  EXPECT_THROW(runtime_.query_event(0, event), DeviceError);
  EXPECT_TRUE(runtime_.context_lost());
  EXPECT_THROW(runtime_.create_stream(0), DeviceError);
  EXPECT_THROW(runtime_.check_context(), DeviceError);
}

TEST_F(ScriptedRuntimeTest, FreeingMemoryInFlightIsNoted) {
  void* pinned = runtime_.allocate_pinned(0, 64);
  runtime_.copy_async(0, device_, pinned, 64, CopyKind::kHostToDevice, nullptr);
  runtime_.free_pinned(pinned);
  EXPECT_EQ(runtime_.violations().size(), 1U);
}

TEST_F(ScriptedRuntimeTest, EnqueuingForAnotherDeviceThanTheCurrentOneIsNoted) {
  runtime_.fill_async(1, runtime_.allocate_device(1, 4), 0, 4, nullptr);
  EXPECT_EQ(runtime_.violations().size(), 1U);
}

TEST_F(ScriptedRuntimeTest, RegistrationsMayNotOverlapOrBeEmpty) {
  alignas(64) std::array<std::byte, 128> memory{};
  EXPECT_THROW(runtime_.register_pinned(0, memory.data(), 0), DeviceError);
  runtime_.register_pinned(0, memory.data(), 64);
  EXPECT_THROW(runtime_.register_pinned(0, memory.data() + 32, 64), DeviceError);
  EXPECT_EQ(runtime_.pointer_info(memory.data() + 63).kind, MemoryKind::kPinned);
  EXPECT_EQ(runtime_.pointer_info(memory.data() + 64).kind, MemoryKind::kPageable);
  // A copy may not span the end of a registration.
  EXPECT_THROW(
      runtime_.copy_async(0, device_, memory.data() + 32, 64, CopyKind::kHostToDevice, nullptr),
      DeviceError);
  runtime_.unregister_pinned(memory.data());
  EXPECT_TRUE(runtime_.violations().empty());
}

TEST_F(ScriptedRuntimeTest, AGraphRunsAgainAndReadsItsSourcesThen) {
  const StreamHandle stream = runtime_.create_stream(0);
  int host = 1;
  runtime_.begin_capture(0, stream);
  EXPECT_EQ(runtime_.capture_status(0, stream), CaptureStatus::kActive);
  copy(host, device_, stream, CopyKind::kHostToDevice);
  const EventHandle event = runtime_.create_event(0, false);
  runtime_.record_external_event(0, event, stream);
  bool destroyed = false;
  runtime_.retain_in_capture(
      0, stream, [](void* flag) { *static_cast<bool*>(flag) = true; }, &destroyed);
  const std::uint64_t graph = runtime_.end_capture(0, stream);
  EXPECT_EQ(runtime_.pending(0, stream), 0U);
  for (host = 5; host < 8; ++host) {
    runtime_.launch_graph(graph, 0, stream);
    EXPECT_FALSE(runtime_.query_event(0, event));
    runtime_.run(0, stream);
    EXPECT_TRUE(runtime_.query_event(0, event));
    EXPECT_EQ(*device_, host);
  }
  EXPECT_FALSE(destroyed);
  runtime_.destroy_graph(graph);
  EXPECT_TRUE(destroyed);
}

TEST_F(ScriptedRuntimeTest, AnEventRecordedUnderCaptureIsNotedAndCannotBeQueried) {
  const StreamHandle stream = runtime_.create_stream(0);
  const EventHandle event = runtime_.create_event(0, false);
  runtime_.begin_capture(0, stream);
  runtime_.record_event(0, event, stream);
  EXPECT_THROW(runtime_.query_event(0, event), DeviceError);
  EXPECT_EQ(runtime_.violations().size(), 1U);
}

}  // namespace
}  // namespace staging::testing
