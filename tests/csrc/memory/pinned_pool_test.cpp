#include "memory/pinned_pool.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/device_scope.h"
#include "runtime/host_runtime.h"
#include "support/error.h"
#include "support/interrupt.h"
#include "support/scripted_runtime.h"

namespace staging {
namespace {

using testing::ScriptedRuntime;

constexpr std::size_t kKiB = std::size_t{1} << 10;
constexpr std::size_t kMiB = std::size_t{1} << 20;

class PinnedPoolTest : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(runtime_.violations(), std::vector<std::string>()); }

  // A copy out of `block` that has not run yet.
  void enqueue_copy(const PinnedBlock& block, StreamHandle stream) {
    runtime_.copy_async(0, device_, block.data(), 8, CopyKind::kHostToDevice, stream);
  }

  ScriptedRuntime runtime_;
  PinnedPool pool_{runtime_};
  StreamHandle stream_ = runtime_.create_stream(0);
  void* device_ = runtime_.allocate_device(0, 64);
};

bool balanced(const PinnedStats& stats) {
  return stats.in_use_nbytes + stats.in_flight_nbytes + stats.cached_nbytes + stats.lost_nbytes ==
         stats.allocated_nbytes;
}

// -- sizes ---------------------------------------------------------------------------------

TEST_F(PinnedPoolTest, ALargeBlockCostsAPageMoreAtMost) {
  const std::size_t asked = 129 * kMiB + kMiB / 2;
  for (const std::size_t nbytes : {asked, asked + 1, kMiB + 1, 300 * kKiB}) {
    PinnedPool pool(runtime_);
    const PinnedBlock block = pool.allocate(nbytes);
    EXPECT_EQ(block.nbytes(), nbytes);
    EXPECT_LE(pool.stats().allocated_nbytes, nbytes + page_nbytes());
    EXPECT_LE(pool.stats().in_use_nbytes, nbytes + page_nbytes());
  }
}

TEST_F(PinnedPoolTest, SmallBlocksShareASlab) {
  std::vector<PinnedBlock> blocks;
  for (int i = 0; i < 1000; ++i) blocks.push_back(pool_.allocate(100));
  EXPECT_EQ(runtime_.calls("register_pinned"), 1U);
  for (int i = 0; i < 100; ++i) blocks.push_back(pool_.allocate(5000));
  EXPECT_EQ(runtime_.calls("register_pinned"), 2U);
}

TEST_F(PinnedPoolTest, BlocksOfAPageOrMoreBeginAtAPage) {
  const PinnedBlock odd = pool_.allocate(kKiB);
  for (const std::size_t nbytes : {page_nbytes(), 3 * page_nbytes() + 1, 2 * kMiB}) {
    const PinnedBlock block = pool_.allocate(nbytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block.data()) % page_nbytes(), 0U);
  }
}

TEST_F(PinnedPoolTest, ZeroBytesSucceedWithAPinnedAddressOfTheirOwn) {
  const PinnedBlock first = pool_.allocate(0);
  const PinnedBlock second = pool_.allocate(0);
  EXPECT_EQ(first.nbytes(), 0U);
  EXPECT_NE(first.data(), second.data());
  EXPECT_EQ(runtime_.pointer_info(first.data()).kind, MemoryKind::kPinned);
}

TEST_F(PinnedPoolTest, AnImpossibleSizeIsOutOfMemoryAndNothingIsPinned) {
  EXPECT_THROW(pool_.allocate(SIZE_MAX), OutOfMemory);
  EXPECT_THROW(pool_.allocate(SIZE_MAX / 8), OutOfMemory);
  EXPECT_EQ(pool_.stats().allocated_nbytes, 0U);
  EXPECT_NO_THROW(pool_.allocate(1));
}

TEST_F(PinnedPoolTest, ACachedRegionServesASmallerRequestAndIsWholeAgainAfterwards) {
  void* const begin = pool_.allocate(16 * kMiB).data();
  {
    const PinnedBlock most = pool_.allocate(10 * kMiB);
    const PinnedBlock rest = pool_.allocate(6 * kMiB);
    EXPECT_EQ(most.data(), begin);
    EXPECT_EQ(rest.bytes(), most.bytes() + 10 * kMiB);
  }
  EXPECT_EQ(pool_.allocate(16 * kMiB).data(), begin);
  EXPECT_EQ(runtime_.calls("register_pinned"), 1U);
}

TEST_F(PinnedPoolTest, AMuchLargerCachedRegionIsNotNibbledAt) {
  pool_.allocate(64 * kMiB).release();
  const PinnedBlock small = pool_.allocate(kMiB);
  EXPECT_EQ(runtime_.calls("register_pinned"), 2U);
  EXPECT_EQ(pool_.trim(), 64 * kMiB);
}

// -- reuse ---------------------------------------------------------------------------------

TEST_F(PinnedPoolTest, ABlockThatNoCopyUsedIsReusedAtOnce) {
  void* const first = pool_.allocate(kMiB).data();
  EXPECT_EQ(pool_.allocate(kMiB).data(), first);
}

TEST_F(PinnedPoolTest, AGatedBlockIsNotReusedBeforeItsEventIsComplete) {
  EventPool events(runtime_, 0);
  Event event = events.acquire();
  PinnedBlock block = pool_.allocate(kMiB);
  void* const first = block.data();
  enqueue_copy(block, stream_);
  event.record(stream_);
  block.release({event});
  event = {};
  EXPECT_EQ(pool_.stats().in_flight_nbytes, kMiB);
  EXPECT_NE(pool_.allocate(kMiB).data(), first);
  runtime_.run(0, stream_);
  EXPECT_EQ(pool_.stats().in_flight_nbytes, 0U);
  const PinnedBlock a = pool_.allocate(kMiB);
  const PinnedBlock b = pool_.allocate(kMiB);
  EXPECT_TRUE(a.data() == first || b.data() == first);
}

TEST_F(PinnedPoolTest, EveryGateMustBeComplete) {
  EventPool events(runtime_, 0);
  const StreamHandle other = runtime_.create_stream(0);
  Event first = events.acquire();
  Event second = events.acquire();
  first.record(stream_);
  second.record(other);
  PinnedBlock block = pool_.allocate(kMiB);
  block.add_gate(std::move(first));
  std::vector<Event> gates;
  gates.push_back(std::move(second));
  block.release(std::move(gates));
  runtime_.run(0, stream_);
  EXPECT_EQ(pool_.stats().in_flight_count, 1U);
  runtime_.run(0, other);
  EXPECT_EQ(pool_.stats().in_flight_count, 0U);
}

TEST_F(PinnedPoolTest, AUseIsKnownByAnyAddressInTheBlock) {
  PinnedBlock block = pool_.allocate(kMiB);
  enqueue_copy(block, stream_);
  EXPECT_TRUE(pool_.record_use(block.bytes() + kMiB - 1, {0, stream_}));
  block.release();
  EXPECT_EQ(pool_.stats().in_flight_nbytes, kMiB);
  runtime_.run(0, stream_);
  EXPECT_EQ(pool_.stats().in_flight_nbytes, 0U);
}

TEST_F(PinnedPoolTest, AUseHoldsUpItsOwnBlockOnly) {
  PinnedBlock used = pool_.allocate(100);
  PinnedBlock neighbour = pool_.allocate(100);
  void* const free = neighbour.data();
  pool_.record_use(used.data(), {0, stream_});
  used.release();
  neighbour.release();
  EXPECT_EQ(pool_.stats().in_flight_count, 1U);
  EXPECT_EQ(pool_.allocate(100).data(), free);
}

TEST_F(PinnedPoolTest, UsesOnSeveralStreamsAllCount) {
  const StreamHandle other = runtime_.create_stream(1);
  PinnedBlock block = pool_.allocate(kMiB);
  pool_.record_use(block.data(), {0, stream_});
  pool_.record_use(block.data(), {1, other});
  pool_.record_use(block.data(), {0, nullptr});
  EXPECT_EQ(runtime_.current_device(), 0);
  block.release();
  runtime_.run(0, stream_);
  runtime_.run(0, nullptr);
  EXPECT_EQ(pool_.stats().in_flight_count, 1U);
  runtime_.run(1, other);
  EXPECT_EQ(pool_.stats().in_flight_count, 0U);
}

TEST_F(PinnedPoolTest, AUseIsRecordedWhenTheCopyIsEnqueuedSoTheStreamMayBeGoneLater) {
  const StreamHandle other = runtime_.create_stream(0);
  PinnedBlock block = pool_.allocate(kMiB);
  enqueue_copy(block, other);
  pool_.record_use(block.data(), {0, other});
  runtime_.destroy_stream(0, other);
  block.release();
  EXPECT_EQ(pool_.stats().failures, 0U);
}

TEST_F(PinnedPoolTest, ReleasingMakesNoCall) {
  PinnedBlock used = pool_.allocate(kMiB);
  PinnedBlock unused = pool_.allocate(10);
  pool_.record_use(used.data(), {0, stream_});
  runtime_.reset_calls();
  used.release();
  unused.release();
  EXPECT_EQ(runtime_.calls(), 0U);
}

TEST_F(PinnedPoolTest, MemoryOfOthersIsNotRecorded) {
  const int local = 0;
  PinnedBlock block = pool_.allocate(kMiB);
  runtime_.reset_calls();
  EXPECT_FALSE(pool_.record_use(&local, {0, stream_}));
  EXPECT_FALSE(pool_.record_use(nullptr, {0, stream_}));
  EXPECT_FALSE(pool_.record_use(block.bytes() + kMiB, {0, stream_}));
  EXPECT_EQ(runtime_.calls(), 0U);
  void* const begin = block.data();
  block.release();
  EXPECT_FALSE(pool_.record_use(begin, {0, stream_}));
}

TEST_F(PinnedPoolTest, SteadyUseKeepsFewEvents) {
  runtime_.set_eager(true);
  const PinnedBlock block = pool_.allocate(kMiB);
  for (int i = 0; i < 1000; ++i) pool_.record_use(block.data(), {0, stream_});
  EXPECT_LE(runtime_.live_events(), 2U);
}

TEST_F(PinnedPoolTest, OneEventACopyInFlightAndTheyComeBack) {
  const PinnedBlock block = pool_.allocate(kMiB);
  for (int i = 0; i < 50; ++i) pool_.record_use(block.data(), {0, stream_});
  EXPECT_EQ(runtime_.live_events(), 50U);
  runtime_.run_all();
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 50; ++i) pool_.record_use(block.data(), {0, stream_});
    runtime_.run_all();
  }
  EXPECT_EQ(runtime_.live_events(), 50U);
}

TEST_F(PinnedPoolTest, AStalledStreamDoesNotKeepTheBlocksOfAnother) {
  const StreamHandle other = runtime_.create_stream(0);
  std::vector<PinnedBlock> stalled;
  for (int i = 0; i < 20; ++i) stalled.push_back(pool_.allocate(kMiB));
  for (PinnedBlock& block : stalled) pool_.record_use(block.data(), {0, stream_});
  stalled.clear();
  for (int i = 0; i < 100; ++i) {
    const PinnedBlock block = pool_.allocate(kMiB);
    pool_.record_use(block.data(), {0, other});
    runtime_.run(0, other);
  }
  EXPECT_LE(runtime_.pinned_nbytes(), 22 * kMiB);
}

// The property that all of the above is for: bytes arrive as they were when the copy was
// enqueued, although their owners drop the block at once and the next one overwrites it.
TEST_F(PinnedPoolTest, NoCopyEverReadsTheNextOwnersBytes) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    PinnedPool pool(runtime_);
    pool.set_limit(2 * kMiB);
    runtime_.progress_after_queries(5);
    const StreamHandle streams[] = {stream_, runtime_.create_stream(0), runtime_.create_stream(0)};
    struct Expected {
      std::byte* device;
      std::vector<std::byte> bytes;
    };
    std::vector<Expected> expected;
    for (int step = 0; step < 300; ++step) {
      const std::size_t nbytes = 1 + random() % (random() % 8 == 0 ? 500 * kKiB : 9 * kKiB);
      PinnedBlock block = pool.allocate(nbytes);
      const auto value = static_cast<std::byte>(random());
      std::memset(block.data(), static_cast<int>(value), nbytes);
      const StreamHandle stream = streams[random() % 3];
      const std::size_t offset = random() % nbytes;
      const std::size_t count = std::min<std::size_t>(nbytes - offset, 64);
      auto* device = static_cast<std::byte*>(runtime_.allocate_device(0, count));
      runtime_.copy_async(0, device, block.bytes() + offset, count, CopyKind::kHostToDevice,
                          stream);
      pool.record_use(block.bytes() + offset, {0, stream});
      expected.push_back({device, std::vector<std::byte>(count, value)});
      block.release();
      if (random() % 4 == 0) runtime_.step(0, streams[random() % 3]);
      if (random() % 64 == 0) pool.trim();
    }
    runtime_.run_all();
    for (const Expected& copy : expected) {
      ASSERT_EQ(std::memcmp(copy.device, copy.bytes.data(), copy.bytes.size()), 0);
    }
    const PinnedStats stats = pool.stats();
    EXPECT_EQ(stats.in_flight_nbytes, 0U);
    EXPECT_EQ(stats.cached_nbytes, stats.allocated_nbytes);
    EXPECT_LE(stats.peak_nbytes, 2 * kMiB);
  }
}

// -- capture -------------------------------------------------------------------------------

TEST_F(PinnedPoolTest, ACapturedUseKeepsTheBlockUntilTheGraphIsGone) {
  PinnedBlock block = pool_.allocate(kMiB);
  runtime_.begin_capture(0, stream_);
  enqueue_copy(block, stream_);
  EXPECT_TRUE(pool_.record_use(block.data(), {0, stream_}));
  const std::uint64_t graph = runtime_.end_capture(0, stream_);
  block.release();
  EXPECT_EQ(pool_.stats().in_flight_count, 1U);
  EXPECT_EQ(pool_.trim(), 0U);
  runtime_.launch_graph(graph, 0, stream_);
  runtime_.run_all();
  EXPECT_EQ(pool_.stats().in_flight_count, 1U);
  runtime_.destroy_graph(graph);
  EXPECT_EQ(pool_.stats().in_flight_count, 0U);
  EXPECT_EQ(runtime_.calls("record_event"), 0U);
}

TEST_F(PinnedPoolTest, ACaptureWhoseGraphCannotRetainTheBlockFailsAndTheBlockIsNeverReused) {
  PinnedBlock block = pool_.allocate(kMiB);
  void* const begin = block.data();
  runtime_.begin_capture(0, stream_);
  runtime_.fail("retain_in_capture");
  EXPECT_THROW(pool_.record_use(block.data(), {0, stream_}), DeviceError);
  EXPECT_EQ(runtime_.calls("synchronize_stream"), 0U);  // would break the capture
  runtime_.destroy_graph(runtime_.end_capture(0, stream_));
  block.release();
  EXPECT_EQ(pool_.stats().lost_nbytes, kMiB);
  EXPECT_NE(pool_.allocate(kMiB).data(), begin);
  EXPECT_TRUE(balanced(pool_.stats()));
}

// -- the limit -----------------------------------------------------------------------------

TEST_F(PinnedPoolTest, BeyondTheLimitIsOutOfMemoryThatNamesIt) {
  pool_.set_limit(8 * kMiB);
  const PinnedBlock block = pool_.allocate(6 * kMiB);
  try {
    pool_.allocate(3 * kMiB);
    FAIL() << "the limit was passed";
  } catch (const OutOfMemory& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find(std::to_string(3 * kMiB)), std::string::npos) << text;
    EXPECT_NE(text.find(std::to_string(8 * kMiB)), std::string::npos) << text;
    EXPECT_NE(text.find("set_pinned_limit"), std::string::npos) << text;
    EXPECT_EQ(text.find("asynchronous"), std::string::npos) << text;
  }
  EXPECT_EQ(pool_.stats().failures, 0U);
  EXPECT_NO_THROW(pool_.allocate(2 * kMiB));
}

TEST_F(PinnedPoolTest, AtTheLimitCachedRegionsMakeRoom) {
  pool_.set_limit(8 * kMiB);
  {
    const PinnedBlock first = pool_.allocate(3 * kMiB);
    const PinnedBlock second = pool_.allocate(5 * kMiB);
  }
  const PinnedBlock block = pool_.allocate(8 * kMiB);
  EXPECT_EQ(pool_.stats().allocated_nbytes, 8 * kMiB);
  EXPECT_EQ(pool_.stats().peak_nbytes, 8 * kMiB);
}

TEST_F(PinnedPoolTest, NothingIsUnpinnedForARequestThatCannotFitAnyway) {
  pool_.set_limit(8 * kMiB);
  const PinnedBlock used = pool_.allocate(5 * kMiB);
  pool_.allocate(3 * kMiB).release();
  EXPECT_THROW(pool_.allocate(4 * kMiB), OutOfMemory);
  EXPECT_EQ(pool_.stats().cached_nbytes, 3 * kMiB);
}

TEST_F(PinnedPoolTest, AtTheLimitAnyFreeRunWillDo) {
  pool_.set_limit(64 * kMiB);
  pool_.allocate(64 * kMiB).release();
  const PinnedBlock whole = pool_.allocate(kMiB);
  const PinnedBlock page = pool_.allocate(5000);
  const PinnedBlock fine = pool_.allocate(10);
  EXPECT_EQ(runtime_.calls("register_pinned"), 1U);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(page.data()) % page_nbytes(), 0U);
}

TEST_F(PinnedPoolTest, ALimitBelowASlabStillHoldsWhatFits) {
  pool_.set_limit(3 * page_nbytes());
  const PinnedBlock fine = pool_.allocate(10);
  EXPECT_LE(pool_.stats().allocated_nbytes, 3 * page_nbytes());
  const PinnedBlock more = pool_.allocate(2000);
  EXPECT_THROW(pool_.allocate(4 * page_nbytes()), OutOfMemory);
}

TEST_F(PinnedPoolTest, AtTheLimitWhatIsInFlightIsWaitedFor) {
  pool_.set_limit(4 * kMiB);
  PinnedBlock first = pool_.allocate(4 * kMiB);
  enqueue_copy(first, stream_);
  pool_.record_use(first.data(), {0, stream_});
  first.release();
  runtime_.progress_after_queries(20);
  const PinnedBlock second = pool_.allocate(3 * kMiB);
  EXPECT_EQ(runtime_.pending(), 0U);
  EXPECT_EQ(pool_.stats().waits, 1U);
}

TEST_F(PinnedPoolTest, AWaitAtTheLimitEndsWhenTheUserInterrupts) {
  pool_.set_limit(4 * kMiB);
  PinnedBlock first = pool_.allocate(4 * kMiB);
  pool_.record_use(first.data(), {0, stream_});
  first.release();
  interrupt_check.store([] { return true; });
  EXPECT_THROW(pool_.allocate(kMiB), Interrupted);
  interrupt_check.store(nullptr);
  EXPECT_EQ(pool_.stats().in_flight_count, 1U);
}

TEST_F(PinnedPoolTest, WhatAGraphHoldsIsNotWaitedFor) {
  pool_.set_limit(4 * kMiB);
  PinnedBlock block = pool_.allocate(4 * kMiB);
  runtime_.begin_capture(0, stream_);
  pool_.record_use(block.data(), {0, stream_});
  const std::uint64_t graph = runtime_.end_capture(0, stream_);
  block.release();
  EXPECT_THROW(pool_.allocate(kMiB), OutOfMemory);
  runtime_.destroy_graph(graph);
  EXPECT_NO_THROW(pool_.allocate(kMiB));
}

TEST_F(PinnedPoolTest, LoweringTheLimitUnpinsWhatIsCachedAndLeavesWhatIsUsed) {
  const PinnedBlock used = pool_.allocate(5 * kMiB);
  pool_.allocate(3 * kMiB).release();
  pool_.set_limit(kMiB);
  EXPECT_EQ(pool_.stats().allocated_nbytes, 5 * kMiB);
  EXPECT_THROW(pool_.allocate(1), OutOfMemory);
  pool_.set_limit(SIZE_MAX);
  EXPECT_NO_THROW(pool_.allocate(1));
}

// -- failures ------------------------------------------------------------------------------

TEST_F(PinnedPoolTest, WhereTheSystemIsShortTheCacheIsGivenBackAndTheRequestRetried) {
  pool_.allocate(3 * kMiB).release();
  runtime_.fail("register_pinned", testing::kErrorMemoryAllocation);
  const PinnedBlock block = pool_.allocate(40 * kMiB);
  EXPECT_EQ(pool_.stats().allocated_nbytes, 40 * kMiB);
  EXPECT_EQ(pool_.stats().failures, 1U);
}

TEST_F(PinnedPoolTest, AFailedPinningIsReportedAndCountedAndTheNextOneWorks) {
  runtime_.fail("register_pinned", testing::kErrorMemoryAllocation);
  EXPECT_THROW(pool_.allocate(3 * kMiB), OutOfMemory);
  runtime_.fail("register_pinned", testing::kErrorInvalidValue);
  EXPECT_THROW(pool_.allocate(3 * kMiB), DeviceError);
  EXPECT_EQ(pool_.stats().failures, 2U);
  EXPECT_EQ(pool_.stats().allocated_nbytes, 0U);
  EXPECT_NO_THROW(pool_.allocate(3 * kMiB));
}

TEST_F(PinnedPoolTest, AUseThatCannotBeRecordedIsWaitedForAndReported) {
  for (const char* method : {"current_device", "capture_status", "create_event", "record_event"}) {
    SCOPED_TRACE(method);
    PinnedPool pool(runtime_);
    PinnedBlock block = pool.allocate(kMiB, 0);
    enqueue_copy(block, stream_);
    runtime_.fail(method);
    try {
      pool.record_use(block.data(), {0, stream_});
      FAIL() << "no error";
    } catch (const DeviceError& error) {
      EXPECT_EQ(error.call(), method);
    }
    EXPECT_EQ(runtime_.pending(0, stream_), 0U);
    EXPECT_EQ(pool.stats().failures, 1U);
    EXPECT_TRUE(pool.record_use(block.data(), {0, stream_}));
    runtime_.run_all();
    block.release();
    EXPECT_EQ(pool.stats().cached_nbytes, kMiB);
  }
}

TEST_F(PinnedPoolTest, AUseThatCanNeitherBeRecordedNorWaitedForIsNeverReused) {
  PinnedBlock block = pool_.allocate(kMiB);
  enqueue_copy(block, stream_);
  runtime_.fail("record_event");
  runtime_.fail("synchronize_stream");
  EXPECT_THROW(pool_.record_use(block.data(), {0, stream_}), DeviceError);
  block.release();
  const PinnedStats stats = pool_.stats();
  EXPECT_EQ(stats.lost_nbytes, kMiB);
  EXPECT_EQ(stats.count, 0U);
  EXPECT_TRUE(balanced(stats));
  EXPECT_EQ(pool_.trim(), 0U);
  runtime_.run_all();
}

TEST_F(PinnedPoolTest, AGateThatCannotBeQueriedStaysInFlight) {
  PinnedBlock block = pool_.allocate(kMiB);
  pool_.record_use(block.data(), {0, stream_});
  block.release();
  runtime_.fail("query_event");
  EXPECT_THROW(pool_.allocate(kMiB), DeviceError);
  runtime_.fail("query_event");
  EXPECT_EQ(pool_.stats().in_flight_count, 1U);  // does not throw
  EXPECT_EQ(pool_.stats().failures, 2U);
  runtime_.run_all();
  EXPECT_EQ(pool_.stats().in_flight_count, 0U);
}

TEST(PinnedPoolContext, OnceTheContextIsLostNothingIsHandedOutOrUnpinned) {
  ScriptedRuntime runtime;
  {
    PinnedPool pool(runtime);
    PinnedBlock block = pool.allocate(kMiB);
    pool.allocate(2 * kMiB).release();
    pool.record_use(block.data(), {0, nullptr});
    runtime.fail("query_event", testing::kErrorIllegalAddress, 1, 1, /*sticky=*/true);
    EXPECT_THROW(pool.record_use(block.data(), {0, nullptr}), DeviceError);
    try {
      pool.allocate(kMiB);
      ADD_FAILURE() << "memory was handed out";
    } catch (const DeviceError& error) {
      EXPECT_EQ(error.call(), "query_event");  // what lost it
      EXPECT_TRUE(error.sticky());
    }
    block.release();
    pool.trim();
    EXPECT_EQ(pool.stats().in_use_nbytes, 0U);
  }
  EXPECT_EQ(runtime.calls("unregister_pinned"), 0U);
}

// -- trim, figures, places -----------------------------------------------------------------

TEST_F(PinnedPoolTest, TrimUnpinsWhatNothingUses) {
  PinnedBlock used = pool_.allocate(kMiB);
  PinnedBlock flying = pool_.allocate(2 * kMiB);
  PinnedBlock small = pool_.allocate(10);
  pool_.allocate(4 * kMiB).release();
  pool_.record_use(flying.data(), {0, stream_});
  flying.release();
  EXPECT_EQ(pool_.trim(), 4 * kMiB);
  EXPECT_EQ(pool_.trim(), 0U);
  runtime_.run_all();
  small.release();
  EXPECT_EQ(pool_.trim(), 2 * kMiB + PinnedPool::kFineSlabNbytes);
  EXPECT_EQ(runtime_.pinned_nbytes(), kMiB);
}

TEST_F(PinnedPoolTest, TheFiguresAddUp) {
  PinnedBlock used = pool_.allocate(5 * kMiB);
  PinnedBlock flying = pool_.allocate(3 * kMiB);
  pool_.allocate(2 * kMiB).release();
  pool_.record_use(flying.data(), {0, stream_});
  flying.release();
  PinnedStats stats = pool_.stats();
  EXPECT_EQ(stats.allocated_nbytes, 10 * kMiB);
  EXPECT_EQ(stats.in_use_nbytes, 5 * kMiB);
  EXPECT_EQ(stats.in_flight_nbytes, 3 * kMiB);
  EXPECT_EQ(stats.cached_nbytes, 2 * kMiB);
  EXPECT_EQ(stats.peak_nbytes, 10 * kMiB);
  EXPECT_EQ(stats.peak_in_use_nbytes, 10 * kMiB);
  EXPECT_EQ(stats.count, 1U);
  EXPECT_EQ(stats.allocations, 3U);
  EXPECT_EQ(stats.regions, 3U);
  runtime_.run_all();
  pool_.trim();
  stats = pool_.stats();
  EXPECT_EQ(stats.allocated_nbytes, 5 * kMiB);
  EXPECT_EQ(stats.peak_nbytes, 10 * kMiB);
  pool_.reset_peak();
  EXPECT_EQ(pool_.stats().peak_nbytes, 5 * kMiB);
}

TEST_F(PinnedPoolTest, TheDevicesNodeIsPreferred) {
  runtime_.set_numa_node(0, 0);
  runtime_.set_numa_node(1, 1);
  PinnedPoolOptions options;
  options.nodes = {0, 1};
  PinnedPool pool(runtime_, options);
  pool.allocate(kMiB, 0).release();
  const PinnedBlock near_other = pool.allocate(kMiB, 1);
  EXPECT_EQ(pool.stats().regions, 2U);
  const PinnedBlock near_first = pool.allocate(kMiB, 0);
  const PinnedBlock explicitly = pool.allocate_on_node(kMiB, 0, 1);
  EXPECT_EQ(pool.stats().regions, 3U);
  EXPECT_EQ(runtime_.calls("numa_node"), 2U);
  EXPECT_THROW(pool.allocate_on_node(kMiB, 0, 7), InvalidArgument);
}

TEST_F(PinnedPoolTest, AnotherNodesMemoryIsBetterThanNone) {
  PinnedPoolOptions options;
  options.nodes = {0, 1};
  options.limit_nbytes = 4 * kMiB;
  PinnedPool pool(runtime_, options);
  const PinnedBlock used = pool.allocate_on_node(kMiB, 0, 1);
  pool.allocate_on_node(3 * kMiB, 0, 1).release();
  EXPECT_NO_THROW(pool.allocate_on_node(2 * kMiB, 0, 0));
  EXPECT_EQ(runtime_.calls("register_pinned"), 2U);
}

TEST_F(PinnedPoolTest, ADeviceOfAnUnknownNodeTakesAnyMemory) {
  runtime_.set_numa_node(0, 12);
  PinnedPoolOptions options;
  options.nodes = {0, 1};
  PinnedPool pool(runtime_, options);
  EXPECT_NO_THROW(pool.allocate(kMiB, 0));
}

TEST_F(PinnedPoolTest, SeamsAreWhereRegistrationsEnd) {
  const int local = 0;
  EXPECT_EQ(pool_.registered_from(&local), SIZE_MAX);
  PinnedPoolOptions options;
  options.max_registration_nbytes = kMiB;
  PinnedPool pool(runtime_, options);
  const PinnedBlock block = pool.allocate(2 * kMiB);
  EXPECT_EQ(pool.registered_from(block.bytes() + 100), 512 * kKiB - 100);
}

TEST_F(PinnedPoolTest, DetachedBlocksAreStillOwned) {
  PinnedBlock block = pool_.allocate(kMiB);
  void* const owner = block.detach();
  EXPECT_FALSE(block);
  EXPECT_EQ(pool_.stats().count, 1U);
  PinnedBlock::attach(owner).release();
  EXPECT_EQ(pool_.stats().count, 0U);
}

// -- threads and processes -----------------------------------------------------------------

TEST_F(PinnedPoolTest, ManyThreadsShareItAndNobodySeesAnothersBytes) {
  runtime_.set_eager(true);
  pool_.set_limit(16 * kMiB);
  constexpr int kThreads = 4;
  std::atomic<int> wrong{0};
  const auto work = [&](int thread) {
    std::mt19937_64 random(static_cast<std::uint64_t>(thread) + 1);
    std::vector<std::pair<PinnedBlock, std::byte>> held;
    for (int step = 0; step < 400; ++step) {
      const std::size_t nbytes = 1 + random() % (step % 16 == 0 ? 600 * kKiB : 8 * kKiB);
      PinnedBlock block = pool_.allocate(nbytes, 0);
      const auto value = static_cast<std::byte>(random());
      std::memset(block.data(), static_cast<int>(value), nbytes);
      if (step % 3 == 0) pool_.record_use(block.data(), {0, stream_});
      held.emplace_back(std::move(block), value);
      if (held.size() > 8) {
        const std::size_t index = random() % held.size();
        const auto& [old, old_value] = held[index];
        std::byte* const end = old.bytes() + old.nbytes();
        if (!std::all_of(old.bytes(), end, [v = old_value](std::byte b) { return b == v; }))
          ++wrong;
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(index));
      }
      if (step % 100 == 50) pool_.trim();
      if (step % 10 == 5) (void)pool_.stats();
    }
  };
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) threads.emplace_back(work, thread);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  const PinnedStats stats = pool_.stats();
  EXPECT_EQ(stats.count, 0U);
  EXPECT_EQ(stats.cached_nbytes, stats.allocated_nbytes);
  pool_.trim();
  EXPECT_EQ(runtime_.pinned_nbytes(), 0U);
}

TEST_F(PinnedPoolTest, AtTheLimitAThreadGetsWhatAnotherReleases) {
  pool_.set_limit(4 * kMiB);
  std::vector<std::thread> threads;
  runtime_.progress_after_queries(2);
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (int step = 0; step < 50; ++step) {
        // Each leaves its block in flight; there is room for one at a time.
        PinnedBlock block;
        while (!block) {
          try {
            block = pool_.allocate(4 * kMiB, 0);
          } catch (const OutOfMemory&) {  // another thread owns it just now
            std::this_thread::yield();
          }
        }
        pool_.record_use(block.data(), {0, stream_});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  runtime_.run_all();
  EXPECT_EQ(pool_.stats().allocated_nbytes, 4 * kMiB);
  EXPECT_EQ(pool_.stats().cached_nbytes, 4 * kMiB);
}

TEST(PinnedPoolProcess, ThereIsOnePoolARuntime) {
  static HostRuntime first;
  static HostRuntime second;
  EXPECT_EQ(&PinnedPool::get(first), &PinnedPool::get(first));
  EXPECT_NE(&PinnedPool::get(first), &PinnedPool::get(second));
}

TEST(PinnedPoolProcess, AForkNeverFindsThePoolLocked) {
  static HostRuntime runtime;
  PinnedPool& pool = PinnedPool::get(runtime);
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop) pool.allocate(100).release();
  });
  for (int round = 0; round < 20; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);
      pool.allocate(100).release();
      _exit(0);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << "round " << round;
  }
  stop = true;
  busy.join();
}

}  // namespace
}  // namespace staging
