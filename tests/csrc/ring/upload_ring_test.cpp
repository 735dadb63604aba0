#include "ring/upload_ring.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <set>
#include <thread>

#include "support/error.h"
#include "support/scripted_runtime.h"

namespace staging {
namespace {

using Slot = UploadRing::Slot;

class UploadRingTest : public ::testing::Test {
 protected:
  static constexpr std::size_t kDeviceNbytes = 32 << 20;
  static constexpr std::size_t kLimit = 2 << 20;

  testing::ScriptedRuntime runtime_{1};
  EventPool events_{runtime_, 0};
  PinnedPool pool_{runtime_};
  StreamHandle stream_ = runtime_.create_stream(0);
  UploadBudget budget_{kLimit};
  UploadRing ring_{events_, pool_, {0, stream_}, budget_};
  void* device_ = runtime_.allocate_device(0, kDeviceNbytes);

  // One copy through the ring; the slot's bytes are `value`.
  Slot copy(std::size_t nbytes, int value = 1) {
    const Slot slot = ring_.reserve(nbytes);
    std::memset(slot.data(), value, nbytes);
    runtime_.copy_async(0, device_, slot.data(), nbytes, CopyKind::kHostToDevice, stream_);
    Event event = events_.acquire();
    event.record(stream_);
    ring_.commit(slot, event);
    return slot;
  }

  void TearDown() override { runtime_.run_all(); }
};

TEST_F(UploadRingTest, AsksForCompletionOnceInManyCopies) {
  runtime_.set_eager(true);
  for (int i = 0; i < 1000; ++i) copy(4096);
  runtime_.reset_calls();
  for (int i = 0; i < 10'000; ++i) copy(4096);
  EXPECT_LT(runtime_.calls("query_event"), 1000u);
  EXPECT_EQ(runtime_.calls("register_pinned") + runtime_.calls("allocate_pinned"), 0u);
  EXPECT_EQ(ring_.stats().waits, 0u);
}

TEST_F(UploadRingTest, ASlotInFlightIsNeverHandedOutAgain) {
  std::vector<std::pair<std::byte*, std::size_t>> live;
  for (int i = 0; i < 60; ++i) {
    const Slot slot = copy(10'000);
    for (const auto& [begin, nbytes] : live) {
      EXPECT_TRUE(slot.data() + 10'000 <= begin || begin + nbytes <= slot.data());
    }
    live.emplace_back(slot.data(), 10'000);
  }
}

TEST_F(UploadRingTest, AFullRingWaitsForTheOldestAndLosesNothing) {
  runtime_.progress_after_queries(3);
  const std::size_t nbytes = 100'000;
  for (int i = 0; i < 100; ++i) {
    copy(nbytes, i);
    EXPECT_LE(ring_.stats().in_flight_nbytes, kLimit);
  }
  EXPECT_GT(ring_.stats().waits, 0u);
  EXPECT_TRUE(runtime_.violations().empty());
}

TEST_F(UploadRingTest, ALoweredLimitHoldsForARingThatHasGrown) {
  runtime_.progress_after_queries(3);
  const std::size_t nbytes = 64 << 10;
  for (int i = 0; i < 40; ++i) copy(nbytes);
  runtime_.run_all();
  EXPECT_GT(ring_.stats().capacity_nbytes, UploadBudget::kMinLimitNbytes);
  budget_.set_limit(UploadBudget::kMinLimitNbytes);
  for (int i = 0; i < 40; ++i) {
    copy(nbytes, i);
    EXPECT_LE(ring_.stats().in_flight_nbytes, UploadBudget::kMinLimitNbytes);
  }
  EXPECT_GT(ring_.stats().waits, 0u);
}

TEST_F(UploadRingTest, ACopyLargerThanTheLimitStillPasses) {
  runtime_.progress_after_queries(1);
  const std::size_t nbytes = 3 * kLimit;
  for (int i = 0; i < 4; ++i) {
    const Slot slot = ring_.reserve(nbytes);
    std::memset(slot.data(), i, nbytes);
    Event event = events_.acquire();
    event.record(stream_);
    ring_.commit(slot, event);
  }
  EXPECT_LE(ring_.stats().in_flight_nbytes, 2 * nbytes);
}

TEST_F(UploadRingTest, AnAbandonedSlotIsFree) {
  for (int i = 0; i < 10'000; ++i) ring_.abandon(ring_.reserve(50'000));
  const UploadRingStats stats = ring_.stats();
  EXPECT_EQ(stats.in_flight_nbytes, 0u);
  EXPECT_EQ(stats.in_flight_slots, 0u);
  EXPECT_LE(stats.capacity_nbytes, kLimit);
}

TEST_F(UploadRingTest, ASlotWithoutAnEventIsFreedWithALaterOne) {
  const Slot lost = ring_.reserve(1000);
  ring_.commit(lost, {});
  copy(1000);
  runtime_.run_all();
  ring_.trim();
  EXPECT_EQ(ring_.stats().in_flight_slots, 0u);
}

TEST_F(UploadRingTest, ASlotWithoutAnEventAndNoLaterOneWaitsForTheStream) {
  const std::size_t nbytes = UploadRing::kMaxSlotNbytes;
  for (std::size_t i = 0; i < kLimit / nbytes; ++i) ring_.commit(ring_.reserve(nbytes), {});
  runtime_.reset_calls();
  ring_.abandon(ring_.reserve(nbytes));
  EXPECT_EQ(runtime_.calls("synchronize_stream"), 1u);
}

TEST_F(UploadRingTest, TrimGivesBackAllThatIsIdle) {
  copy(1000);
  EXPECT_EQ(ring_.trim(), 0u);
  runtime_.run_all();
  EXPECT_GT(ring_.trim(), 0u);
  pool_.trim();
  EXPECT_EQ(runtime_.pinned_nbytes(), 0u);
  copy(1000);  // and it goes on
}

TEST_F(UploadRingTest, TrimFindsAFillThatALaterCopyOvertook) {
  const Slot fill = ring_.reserve_block(1000);
  copy(1000);  // reserved later, committed sooner
  Event event = events_.acquire();
  event.record(stream_);
  ring_.commit(fill, event);
  runtime_.run_all();
  ring_.trim();
  EXPECT_EQ(ring_.stats().in_flight_slots, 0u);
}

TEST_F(UploadRingTest, AFailedAllocationClaimsNothing) {
  for (const std::size_t nbytes : {std::size_t{1000}, 2 * UploadRing::kMaxSlotNbytes}) {
    runtime_.fail("register_pinned", testing::kErrorMemoryAllocation, 1, 100);
    runtime_.fail("allocate_pinned", testing::kErrorMemoryAllocation, 1, 100);
    EXPECT_THROW(ring_.reserve(nbytes), DeviceError);
    runtime_.clear_failures();
    EXPECT_EQ(ring_.stats().in_flight_slots, 0u);
    copy(nbytes);
    runtime_.run_all();
    ring_.trim();
    pool_.trim();
  }
}

TEST_F(UploadRingTest, WithoutMoreMemoryItWaitsForWhatItHas) {
  runtime_.progress_after_queries(3);
  copy(1000);
  runtime_.fail("register_pinned", testing::kErrorMemoryAllocation, 1, 100'000);
  for (int i = 0; i < 2000; ++i) copy(10'000);
  EXPECT_GT(ring_.stats().waits, 0u);
  EXPECT_TRUE(runtime_.violations().empty());
}

TEST_F(UploadRingTest, AtTheLimitOfThePoolASlotTakesWhatItNeeds) {
  pool_.set_limit(std::size_t{64} << 10);
  for (const std::size_t nbytes : {100UL, 5000UL, 65'536UL, 100UL, 65'536UL}) {
    const Slot slot = ring_.reserve(nbytes);
    std::memset(slot.data(), 1, nbytes);
    ring_.abandon(slot);
  }
  // An idle segment is given up for a block of its own, too.
  ring_.abandon(ring_.reserve_block(65'536));
  ring_.abandon(ring_.reserve(65'536));
  EXPECT_THROW(ring_.reserve(65'537), OutOfMemory);
}

TEST_F(UploadRingTest, FollowsWhatIsInFlight) {
  runtime_.set_eager(true);
  for (int i = 0; i < 100; ++i) copy(256);
  EXPECT_LE(ring_.stats().capacity_nbytes, UploadRing::kFirstSegmentNbytes);
  runtime_.set_eager(false);
  for (int i = 0; i < 100; ++i) copy(16'000);
  EXPECT_GE(ring_.stats().capacity_nbytes, 1'600'000u);
  runtime_.run_all();
  copy(256);
  runtime_.run_all();
  ring_.count_in_flight(0);  // looks at what is complete
  EXPECT_LE(ring_.stats().capacity_nbytes, UploadRing::kMaxSegmentNbytes);
  EXPECT_EQ(ring_.stats().in_flight_slots, 0u);
}

TEST_F(UploadRingTest, ALargeCopyLeavesNothingPinnedInTheRing) {
  runtime_.set_eager(true);
  copy(16 << 20);
  EXPECT_EQ(ring_.stats().capacity_nbytes, 0u);
  copy(256);
  EXPECT_LE(ring_.stats().capacity_nbytes, UploadRing::kFirstSegmentNbytes);
  EXPECT_GT(pool_.stats().cached_nbytes, std::size_t{16} << 20);
}

TEST_F(UploadRingTest, ASlotOfItsOwnHoldsUpNobody) {
  const Slot open = ring_.reserve_block(1000);
  runtime_.progress_after_queries(3);
  for (int i = 0; i < 100; ++i) copy(100'000);
  EXPECT_LE(ring_.stats().in_flight_nbytes, kLimit + 1000);
  std::memset(open.data(), 7, 1000);
  runtime_.copy_async(0, device_, open.data(), 1000, CopyKind::kHostToDevice, stream_);
  Event event = events_.acquire();
  event.record(stream_);
  ring_.commit(open, event);
  runtime_.run_all();
  EXPECT_EQ(*static_cast<char*>(device_), 7);
}

TEST_F(UploadRingTest, SlotsOfTheirOwnDoNotCountBeforeTheyAreCommitted) {
  std::vector<Slot> open;
  for (int i = 0; i < 40; ++i) open.push_back(ring_.reserve_block(200'000));  // 8 MB
  copy(1000);
  EXPECT_EQ(ring_.stats().waits, 0u);
  for (const Slot& slot : open) ring_.abandon(slot);
}

TEST_F(UploadRingTest, TheMemoryOfASlotOfItsOwnStaysWithWhoeverHoldsIt) {
  std::shared_ptr<PinnedBlock> held;
  {
    const Slot slot = ring_.reserve_block(1000);
    held = slot.block();
    ring_.abandon(slot);
  }
  EXPECT_EQ(ring_.stats().in_flight_slots, 0u);
  EXPECT_NE(ring_.reserve_block(1000).data(), held->bytes());
}

TEST_F(UploadRingTest, LargeCopiesInFlightAreLimitedToo) {
  runtime_.progress_after_queries(20);
  for (int i = 0; i < 50; ++i) {
    copy(500'000, i);
    EXPECT_LE(ring_.stats().in_flight_nbytes, kLimit);
  }
  EXPECT_GT(ring_.stats().waits, 0u);
}

TEST_F(UploadRingTest, TheLimitCanBeChanged) {
  runtime_.progress_after_queries(3);
  budget_.set_limit(8 << 20);
  for (int i = 0; i < 70; ++i) copy(100'000);
  EXPECT_EQ(ring_.stats().waits, 0u);
  budget_.set_limit(0);
  EXPECT_EQ(budget_.limit(), UploadBudget::kMinLimitNbytes);
}

TEST_F(UploadRingTest, CountsTheSlotsOfATag) {
  const auto commit = [&](const Slot& slot) {
    Event event = events_.acquire();
    runtime_.fill_async(0, device_, 0, 1, stream_);
    event.record(stream_);
    ring_.commit(slot, event);
  };
  for (int i = 0; i < 3; ++i) commit(ring_.reserve(100, 5));
  commit(ring_.reserve(100, 6));
  commit(ring_.reserve_block(100, 5));
  EXPECT_EQ(ring_.count_in_flight(5), 4u);
  EXPECT_EQ(ring_.count_in_flight(6), 1u);
  for (int i = 0; i < 4; ++i) runtime_.step(0, stream_);  // two copies and their events
  EXPECT_EQ(ring_.count_in_flight(5), 2u);
  runtime_.run_all();
  EXPECT_EQ(ring_.count_in_flight(5), 0u);
}

TEST_F(UploadRingTest, ARingThatGoesAwayLeavesItsMemoryToThePoolUntilTheCopiesAreDone) {
  std::byte* data = nullptr;
  {
    UploadRing ring(events_, pool_, {0, stream_}, budget_);
    const Slot slot = ring.reserve(1000);
    data = slot.data();
    runtime_.copy_async(0, device_, data, 1000, CopyKind::kHostToDevice, stream_);
    Event event = events_.acquire();
    event.record(stream_);
    ring.commit(slot, event);
  }
  EXPECT_GT(pool_.stats().in_flight_nbytes, 0u);
  EXPECT_NE(pool_.allocate(1000).bytes(), data);
  runtime_.run_all();
  EXPECT_EQ(pool_.stats().in_flight_nbytes, 0u);
}

TEST_F(UploadRingTest, ThreadsShareARingWithoutSharingASlot) {
  runtime_.set_eager(true);
  std::atomic<bool> mixed{false};
  std::vector<std::thread> threads;
  for (int id = 0; id < 4; ++id) {
    threads.emplace_back([&, id] {
      for (int i = 0; i < 500; ++i) {
        const std::size_t nbytes = 1000 + 100 * static_cast<std::size_t>(i % 7);
        const Slot slot = ring_.reserve(nbytes);
        std::memset(slot.data(), id, nbytes);
        std::this_thread::yield();
        for (std::size_t k = 0; k < nbytes; ++k) {
          if (slot.data()[k] != static_cast<std::byte>(id)) mixed = true;
        }
        Event event = events_.acquire();
        event.record(stream_);
        ring_.commit(slot, event);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(mixed);
}

TEST_F(UploadRingTest, RandomSizesAndProgressNeverOverlap) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  runtime_.progress_after_queries(2);
  for (int i = 0; i < 3000; ++i) {
    const std::size_t nbytes = 1 + random() % (random() % 16 == 0 ? 300'000 : 3000);
    copy(nbytes, i & 0xff);
    if (random() % 5 == 0) runtime_.step(0, stream_);
    if (random() % 97 == 0) runtime_.run_all();
  }
  EXPECT_TRUE(runtime_.violations().empty());
}

}  // namespace
}  // namespace staging
