#include "transfer/buffer_copies.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "support/error.h"
#include "support/scripted_runtime.h"

namespace staging {
namespace {

class BufferCopiesTest : public ::testing::Test {
 protected:
  static constexpr std::size_t kNbytes = 64;

  testing::ScriptedRuntime runtime_{2};
  DeviceContext context_{runtime_, 0};
  StreamHandle a_ = runtime_.create_stream(0);
  StreamHandle b_ = runtime_.create_stream(0);
  char* device_ = static_cast<char*>(runtime_.allocate_device(0, kNbytes));
  char* host_ = static_cast<char*>(runtime_.allocate_pinned(0, kNbytes));
  std::shared_ptr<int> host_owner_ = std::make_shared<int>(1);
  std::shared_ptr<int> device_owner_ = std::make_shared<int>(2);
  BufferCopies copies_{context_, arrays(), Reuse::kSnapshot};

  BufferCopies::Arrays arrays(bool pinned = true) {
    return {host_, pinned, device_, kNbytes, host_owner_, device_owner_};
  }

  void SetUp() override {
    std::memset(host_, 0, kNbytes);
    runtime_.progress_after_queries(4);  // a wait gets there in the end
  }
  void TearDown() override {
    runtime_.run_all();
    EXPECT_TRUE(runtime_.violations().empty());
    runtime_.free_pinned(host_);
  }
};

TEST_F(BufferCopiesTest, AnUploadIsNotChangedByALaterWrite) {
  std::strcpy(host_, "old");
  copies_.upload({0, a_}, kNbytes);
  std::strcpy(host_, "new");
  runtime_.run_all();
  EXPECT_STREQ(device_, "old");
}

TEST_F(BufferCopiesTest, CopiesOnTwoStreamsKeepTheirOrder) {
  std::strcpy(host_, "one");
  copies_.upload({0, a_}, kNbytes);
  std::strcpy(host_, "two");
  copies_.upload({0, b_}, kNbytes);
  EXPECT_FALSE(runtime_.step(0, b_));  // it waits for the other stream
  runtime_.run(0, a_);
  runtime_.run(0, b_);
  EXPECT_STREQ(device_, "two");
}

TEST_F(BufferCopiesTest, OneStreamNeedsNoWait) {
  copies_.upload({0, a_}, kNbytes);
  runtime_.reset_calls();
  copies_.upload({0, a_}, kNbytes);
  EXPECT_EQ(runtime_.calls("stream_wait_event"), 0u);
  EXPECT_EQ(runtime_.calls("capture_status"), 1u);
  EXPECT_EQ(runtime_.calls("current_device"), 1u);
}

TEST_F(BufferCopiesTest, ADownloadGuardsTheHostArrayUntilItIsDone) {
  std::strcpy(device_, "device");
  copies_.download({0, a_}, kNbytes);
  EXPECT_TRUE(copies_.host_in_flight());
  copies_.wait_host();
  EXPECT_STREQ(host_, "device");
  EXPECT_FALSE(copies_.host_in_flight());
}

TEST_F(BufferCopiesTest, AnUploadBehindADownloadSendsTheDevicesOwnBytes) {
  std::strcpy(device_, "device");
  std::strcpy(host_, "stale");
  copies_.download({0, a_}, kNbytes);
  copies_.upload({0, b_}, kNbytes);
  EXPECT_EQ(std::string(host_), "stale");
  runtime_.run_all();
  EXPECT_STREQ(device_, "device");
}

TEST_F(BufferCopiesTest, WaitsForBothADownloadAndTheUploadBehindIt) {
  copies_.download({0, a_}, kNbytes);
  copies_.upload({0, a_}, kNbytes);
  runtime_.step(0, a_);  // the download's copy
  runtime_.step(0, a_);  // its event
  EXPECT_TRUE(copies_.host_in_flight());
  copies_.wait_host();
  EXPECT_EQ(runtime_.pending(0, a_), 0u);
}

TEST_F(BufferCopiesTest, AFailedDownloadLeavesNoGuardBehind) {
  for (const char* method : {"copy_async", "record_event"}) {
    runtime_.fail(method);
    EXPECT_THROW(copies_.download({0, a_}, kNbytes), DeviceError);
    runtime_.clear_failures();
    runtime_.run_all();
    EXPECT_FALSE(copies_.host_in_flight());
  }
}

// -- the other policies --------------------------------------------------------------------

TEST_F(BufferCopiesTest, UnderWaitTheTransferReadsTheHostArrayAndTheGuardWaits) {
  BufferCopies copies(context_, arrays(), Reuse::kWait);
  std::strcpy(host_, "one");
  runtime_.reset_calls();
  EXPECT_TRUE(copies.upload({0, a_}, kNbytes));
  EXPECT_EQ(runtime_.calls("query_event"), 0u);
  EXPECT_TRUE(copies.host_in_flight());
  copies.wait_host();
  std::strcpy(host_, "two");
  EXPECT_STREQ(device_, "one");
  EXPECT_EQ(copies.counts().waits, 1u);
}

TEST_F(BufferCopiesTest, UncheckedReadsTheHostArrayAndAsksForNoGuard) {
  BufferCopies copies(context_, arrays(), Reuse::kUnchecked);
  std::strcpy(host_, "one");
  EXPECT_FALSE(copies.upload({0, a_}, kNbytes));
  std::strcpy(host_, "two");
  runtime_.run_all();
  EXPECT_STREQ(device_, "two");  // the race that its user takes on
}

TEST_F(BufferCopiesTest, APageableHostArrayIsNeverReadByATransfer) {
  for (const Reuse reuse : {Reuse::kSnapshot, Reuse::kWait, Reuse::kUnchecked}) {
    BufferCopies copies(context_, arrays(/*pinned=*/false), reuse);
    std::strcpy(host_, "one");
    EXPECT_FALSE(copies.upload({0, a_}, kNbytes));
    std::strcpy(host_, "two");
    runtime_.run_all();
    EXPECT_STREQ(device_, "one");
  }
}

TEST_F(BufferCopiesTest, ADownloadIntoAPageableArrayReturnsWhenTheBytesAreThere) {
  BufferCopies copies(context_, arrays(/*pinned=*/false), Reuse::kSnapshot);
  std::strcpy(device_, "device");
  copies.download({0, a_}, kNbytes);
  EXPECT_STREQ(host_, "device");
  EXPECT_FALSE(copies.host_in_flight());
}

// -- filling a slot ------------------------------------------------------------------------

TEST_F(BufferCopiesTest, AFillIsWrittenInPlaceAndSkipsTheHostArray) {
  std::strcpy(host_, "host");
  ReservedSlot slot = copies_.begin_fill({0, a_}, kNbytes);
  std::strcpy(reinterpret_cast<char*>(slot.data()), "filled");
  copies_.end_fill(std::move(slot), kNbytes);
  std::strcpy(host_, "other");
  runtime_.run_all();
  EXPECT_STREQ(device_, "filled");
  EXPECT_EQ(copies_.slots_in_flight(), 0u);
}

TEST_F(BufferCopiesTest, AFillThatIsGivenUpCopiesNothing) {
  {
    const ReservedSlot slot = copies_.begin_fill({0, a_}, kNbytes);
  }
  EXPECT_EQ(runtime_.pending(), 0u);
  EXPECT_EQ(copies_.slots_in_flight(), 0u);
}

TEST_F(BufferCopiesTest, AFillKeepsTheOrderOfTheBuffersCopies) {
  ReservedSlot slot = copies_.begin_fill({0, b_}, kNbytes);
  std::strcpy(host_, "first");
  copies_.upload({0, a_}, kNbytes);
  std::strcpy(reinterpret_cast<char*>(slot.data()), "second");
  copies_.end_fill(std::move(slot), kNbytes);
  runtime_.run(0, b_);
  runtime_.run(0, a_);
  EXPECT_STREQ(device_, "second");
}

// -- fetching ------------------------------------------------------------------------------

TEST_F(BufferCopiesTest, ManyFetchesAreInFlightAtOnceEachWithItsOwnBytes) {
  std::vector<char*> pinned;
  std::vector<Fetch> fetches;
  for (int i = 0; i < 8; ++i) {
    std::strcpy(host_, std::to_string(i).c_str());
    copies_.upload({0, i % 2 == 0 ? a_ : b_}, kNbytes);
    pinned.push_back(static_cast<char*>(runtime_.allocate_pinned(0, kNbytes)));
    fetches.push_back(copies_.fetch({0, b_}, pinned.back(), kNbytes, nullptr));
    EXPECT_FALSE(fetches.back().done());
  }
  EXPECT_FALSE(copies_.host_in_flight());
  runtime_.run_all();
  for (int i = 0; i < 8; ++i) {
    EXPECT_TRUE(fetches[i].done());
    EXPECT_STREQ(pinned[i], std::to_string(i).c_str());
    runtime_.free_pinned(pinned[i]);
  }
}

TEST_F(BufferCopiesTest, AFetchWaitsNoLongerThanItsDeadline) {
  runtime_.progress_after_queries(0);
  void* pinned = runtime_.allocate_pinned(0, kNbytes);
  const Fetch fetch = copies_.fetch({0, a_}, pinned, kNbytes, nullptr);
  EXPECT_FALSE(fetch.wait_until(PollClock::now() + std::chrono::milliseconds(2)));
  runtime_.run_all();
  EXPECT_TRUE(fetch.wait_until(PollClock::now()));
  runtime_.free_pinned(pinned);
}

// -- capture -------------------------------------------------------------------------------

class CapturedCopiesTest : public BufferCopiesTest {
 protected:
  std::uint64_t capture(BufferCopies& copies) {
    runtime_.begin_capture(0, a_);
    copies.upload({0, a_}, kNbytes);
    return runtime_.end_capture(0, a_);
  }
  std::string replay(std::uint64_t graph) {
    runtime_.launch_graph(graph, 0, a_);
    runtime_.run(0, a_);
    return device_;
  }
};

TEST_F(CapturedCopiesTest, AReplayCopiesTheBytesOfTheLastRefill) {
  std::strcpy(host_, "captured");
  const std::uint64_t graph = capture(copies_);
  std::strcpy(host_, "later");
  EXPECT_EQ(replay(graph), "captured");
  copies_.refill({0, a_}, kNbytes);
  std::strcpy(host_, "even later");
  EXPECT_EQ(replay(graph), "later");
  EXPECT_EQ(copies_.counts().captured, 1u);
  runtime_.destroy_graph(graph);
}

TEST_F(CapturedCopiesTest, ARefillWaitsUntilTheLastReplayHasRead) {
  std::strcpy(host_, "0");
  const std::uint64_t graph = capture(copies_);
  std::vector<std::string> seen;
  char log[8][kNbytes];
  for (int round = 0; round < 8; ++round) {
    std::strcpy(host_, std::to_string(round).c_str());
    copies_.refill({0, a_}, kNbytes);
    runtime_.launch_graph(graph, 0, a_);
    // A reader behind the replay.
    runtime_.copy_async(0, log[round], device_, kNbytes, CopyKind::kDeviceToHost, a_);
  }
  EXPECT_GT(runtime_.pending(0, a_), 0u);  // nobody synchronized the stream
  runtime_.run_all();
  for (int round = 0; round < 8; ++round) EXPECT_EQ(log[round], std::to_string(round));
  EXPECT_GT(copies_.counts().waits, 0u);
  runtime_.destroy_graph(graph);
}

TEST_F(CapturedCopiesTest, TheGraphKeepsTheSlotAndTheDeviceArray) {
  std::uint64_t graph = 0;
  {
    BufferCopies copies(context_, arrays(), Reuse::kSnapshot);
    std::strcpy(host_, "kept");
    graph = capture(copies);
  }
  const std::weak_ptr<int> device_owner = device_owner_;
  // `copies_` shares it too.
  EXPECT_EQ(device_owner.use_count(), 3);
  const std::size_t in_use = context_.pool().stats().in_use_nbytes;
  EXPECT_GT(in_use, 0u);
  EXPECT_EQ(replay(graph), "kept");
  const std::size_t events = runtime_.live_events();
  runtime_.destroy_graph(graph);
  context_.reap();
  EXPECT_EQ(device_owner.use_count(), 2);
  EXPECT_EQ(context_.pool().stats().in_use_nbytes, 0u);
  EXPECT_EQ(runtime_.live_events(), events - 1);
}

TEST_F(CapturedCopiesTest, ACopyBehindAReplayOnAnotherStreamWaitsForIt) {
  std::strcpy(host_, "replayed");
  const std::uint64_t graph = capture(copies_);
  runtime_.launch_graph(graph, 0, a_);
  std::strcpy(host_, "copied");
  copies_.upload({0, b_}, kNbytes);
  EXPECT_FALSE(runtime_.step(0, b_));
  runtime_.run_all();
  EXPECT_STREQ(device_, "copied");
  runtime_.destroy_graph(graph);
}

TEST_F(CapturedCopiesTest, ARefillPutsItsReplayBehindTheCopiesSoFar) {
  const std::uint64_t graph = capture(copies_);
  std::strcpy(host_, "copied");
  copies_.upload({0, b_}, kNbytes);
  std::strcpy(host_, "replayed");
  copies_.refill({0, a_}, kNbytes);
  runtime_.launch_graph(graph, 0, a_);
  EXPECT_FALSE(runtime_.step(0, a_));
  runtime_.run_all();
  EXPECT_STREQ(device_, "replayed");
  runtime_.destroy_graph(graph);
}

TEST_F(CapturedCopiesTest, WhatCannotBeReplayedSafelyIsRefused) {
  EXPECT_THROW(copies_.refill({0, a_}, kNbytes), StateError);  // nothing was captured
  runtime_.begin_capture(0, a_);
  EXPECT_THROW(copies_.download({0, a_}, kNbytes), StateError);
  EXPECT_THROW(copies_.fetch({0, a_}, host_, kNbytes, nullptr), StateError);
  EXPECT_THROW(copies_.begin_fill({0, a_}, kNbytes), StateError);
  copies_.upload({0, a_}, kNbytes);
  EXPECT_THROW(copies_.refill({0, a_}, kNbytes), StateError);
  runtime_.destroy_graph(runtime_.end_capture(0, a_));
  ReservedSlot slot = copies_.begin_fill({0, a_}, kNbytes);
  runtime_.begin_capture(0, a_);
  EXPECT_THROW(copies_.end_fill(std::move(slot), kNbytes), StateError);
  runtime_.destroy_graph(runtime_.end_capture(0, a_));
  EXPECT_EQ(copies_.slots_in_flight(), 0u);
}

TEST_F(CapturedCopiesTest, ACapturedCopyIsNeverRecordedWithAPoolEvent) {
  runtime_.reset_calls();
  const std::uint64_t graph = capture(copies_);
  EXPECT_EQ(runtime_.calls("record_event"), 0u);
  EXPECT_EQ(runtime_.calls("record_external_event"), 1u);
  runtime_.destroy_graph(graph);
}

TEST_F(CapturedCopiesTest, UnderUncheckedAReplayReadsTheHostArrayWhichTheGraphKeeps) {
  std::uint64_t graph = 0;
  {
    BufferCopies copies(context_, arrays(), Reuse::kUnchecked);
    graph = capture(copies);
  }
  EXPECT_EQ(host_owner_.use_count(), 3);
  std::strcpy(host_, "at replay");
  EXPECT_EQ(replay(graph), "at replay");
  runtime_.destroy_graph(graph);
  context_.reap();
  EXPECT_EQ(host_owner_.use_count(), 2);
}

TEST_F(CapturedCopiesTest, AfterAHalfCapturedCopyTheSlotIsNotWrittenAgain) {
  std::strcpy(host_, "fixed");
  runtime_.begin_capture(0, a_);
  runtime_.fail("record_external_event");
  EXPECT_THROW(copies_.upload({0, a_}, kNbytes), DeviceError);
  const std::uint64_t graph = runtime_.end_capture(0, a_);
  runtime_.launch_graph(graph, 0, a_);
  std::strcpy(host_, "other");
  EXPECT_THROW(copies_.refill({0, a_}, kNbytes), StateError);
  const std::uint64_t second = capture(copies_);
  copies_.refill({0, a_}, kNbytes);
  runtime_.run_all();
  EXPECT_STREQ(device_, "fixed");
  runtime_.destroy_graph(graph);
  runtime_.destroy_graph(second);
}

// -- lifetime and failures -----------------------------------------------------------------

TEST_F(BufferCopiesTest, TheHostArrayIsKeptUntilItsCopiesAreDone) {
  auto owner = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = owner;
  {
    BufferCopies copies(context_, {host_, true, device_, kNbytes, std::move(owner)}, Reuse::kWait);
    copies.upload({0, a_}, kNbytes);
  }
  EXPECT_FALSE(watch.expired());
  runtime_.run_all();
  context_.reap();
  EXPECT_TRUE(watch.expired());
}

TEST_F(BufferCopiesTest, ACopyWithoutAnEventGuardsTheHostArrayUntilItsStreamIsThrough) {
  runtime_.fail("record_event");
  runtime_.fail("synchronize_stream");
  std::strcpy(device_, "device");
  EXPECT_THROW(copies_.download({0, a_}, kNbytes), DeviceError);
  EXPECT_TRUE(copies_.host_in_flight());
  runtime_.fail("synchronize_stream");
  EXPECT_THROW(copies_.wait_host(), DeviceError);
  EXPECT_TRUE(copies_.host_in_flight());
  copies_.wait_host();
  EXPECT_FALSE(copies_.host_in_flight());
  EXPECT_STREQ(host_, "device");
}

TEST_F(BufferCopiesTest, AHostArrayThatNobodyCanSayIsFreeIsKeptForEver) {
  auto owner = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = owner;
  {
    BufferCopies copies(context_, {host_, true, device_, kNbytes, std::move(owner)}, Reuse::kWait);
    runtime_.fail("record_event");
    runtime_.fail("synchronize_stream");
    EXPECT_THROW(copies.upload({0, a_}, kNbytes), DeviceError);
  }
  runtime_.run_all();
  context_.reap();
  EXPECT_FALSE(watch.expired());
}

// Each call of the runtime in turn: the error is reported, nothing is lost, the next works.
TEST_F(BufferCopiesTest, AnyFailureLeavesTheNextCopyWhole) {
  const std::vector<std::string> methods = {"current_device",  "capture_status",   "create_event",
                                            "copy_async",      "record_event",     "query_event",
                                            "register_pinned", "stream_wait_event"};
  for (const Reuse reuse : {Reuse::kSnapshot, Reuse::kWait, Reuse::kUnchecked}) {
    for (const std::string& method : methods) {
      for (std::size_t nth = 1; nth <= 3; ++nth) {
        SCOPED_TRACE(::testing::Message() << method << " " << nth << " policy " << int(reuse));
        BufferCopies copies(context_, arrays(), reuse);
        runtime_.fail(method, testing::kErrorInvalidValue, nth);
        int errors = 0;
        for (int i = 0; i < 4; ++i) {
          const StreamRef stream{0, i % 2 == 0 ? a_ : b_};
          try {
            copies.wait_host();
            std::snprintf(host_, kNbytes, "step %d", i);
            copies.upload(stream, kNbytes);
            copies.download(stream, kNbytes);
          } catch (const DeviceError& error) {
            EXPECT_EQ(error.call(), method);
            ++errors;
          }
        }
        EXPECT_LE(errors, 1);
        runtime_.clear_failures();
        copies.wait_host();
        std::strcpy(host_, "after");
        copies.upload({0, a_}, kNbytes);
        runtime_.run_all();
        EXPECT_STREQ(device_, "after");
        EXPECT_FALSE(copies.host_in_flight());
        EXPECT_EQ(copies.slots_in_flight(), 0u);
      }
    }
  }
}

TEST_F(BufferCopiesTest, ALostContextIsReportedByEveryLaterCallAndNothingHangs) {
  copies_.download({0, a_}, kNbytes);
  runtime_.fail("query_event", testing::kErrorIllegalAddress, 1, 1, /*sticky=*/true);
  EXPECT_THROW(copies_.wait_host(), DeviceError);
  EXPECT_THROW(copies_.wait_host(), DeviceError);
  EXPECT_THROW(copies_.upload({0, a_}, kNbytes), DeviceError);
  EXPECT_THROW(copies_.download({0, b_}, kNbytes), DeviceError);
  EXPECT_THROW(copies_.begin_fill({0, a_}, kNbytes), DeviceError);
}

TEST_F(BufferCopiesTest, CountsWhatItDoes) {
  copies_.upload({0, a_}, 16);
  copies_.upload({0, a_}, 16);
  EXPECT_EQ(copies_.slots_in_flight(), 2u);
  copies_.download({0, a_}, 8);
  copies_.wait_host();
  const BufferCounts counts = copies_.counts();
  EXPECT_EQ(counts.to_gpu, 2u);
  EXPECT_EQ(counts.to_gpu_nbytes, 32u);
  EXPECT_EQ(counts.to_cpu, 1u);
  EXPECT_EQ(counts.to_cpu_nbytes, 8u);
  EXPECT_EQ(counts.waits, 1u);
  EXPECT_EQ(copies_.slots_in_flight(), 0u);
}

TEST_F(BufferCopiesTest, AStalledStreamDoesNotHoldUpTheCopiesOfAnother) {
  runtime_.progress_after_queries(0);  // nothing runs on its own: a wait would hang
  char* other_device = static_cast<char*>(runtime_.allocate_device(0, kNbytes));
  BufferCopies other(context_, {host_, true, other_device, kNbytes}, Reuse::kSnapshot);
  for (int i = 0; i < 20'000; ++i) copies_.upload({0, a_}, kNbytes);  // 1.2 MB, never run
  for (int i = 0; i < 100; ++i) {
    std::snprintf(host_, kNbytes, "step %d", i);
    other.upload({0, b_}, kNbytes);
    runtime_.run(0, b_);
    EXPECT_STREQ(other_device, host_);
  }
  EXPECT_EQ(context_.ring_stats().waits, 0u);
}

TEST_F(BufferCopiesTest, TwoThreadsOnOneBufferLeaveTheBytesOfOneOfThem) {
  std::vector<std::thread> threads;
  for (int id = 0; id < 2; ++id) {
    threads.emplace_back([&, id] {
      runtime_.set_device(0);
      const StreamRef stream{0, id == 0 ? a_ : b_};
      for (int i = 0; i < 200; ++i) {
        ReservedSlot slot = copies_.begin_fill(stream, kNbytes);
        std::memset(slot.data(), 'a' + id, kNbytes);
        copies_.end_fill(std::move(slot), kNbytes);
        if (i % 10 == 0) copies_.download(stream, kNbytes);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  runtime_.run_all();
  for (std::size_t i = 1; i < kNbytes; ++i) EXPECT_EQ(device_[i], device_[0]);
  copies_.wait_host();
  for (std::size_t i = 1; i < kNbytes; ++i) EXPECT_EQ(host_[i], host_[0]);
}

TEST_F(BufferCopiesTest, NothingIsCalledForNoBytes) {
  runtime_.reset_calls();
  copies_.upload({0, a_}, 0);
  copies_.download({0, a_}, 0);
  EXPECT_EQ(runtime_.calls(), 0u);
}

TEST_F(BufferCopiesTest, TheCurrentDeviceIsUnchanged) {
  runtime_.set_device(1);
  copies_.upload({0, a_}, kNbytes);
  copies_.download({0, a_}, kNbytes);
  EXPECT_EQ(runtime_.current_device(), 1);
}

}  // namespace
}  // namespace staging
