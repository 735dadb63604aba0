#include "transfer/device_context.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "support/scripted_runtime.h"

namespace staging {
namespace {

class DeviceContextTest : public ::testing::Test {
 protected:
  testing::ScriptedRuntime runtime_{1};
  DeviceContext context_{runtime_, 0};
  StreamHandle stream_ = runtime_.create_stream(0);
  void* device_ = runtime_.allocate_device(0, 64);

  EventFrontier pending_copy() {
    runtime_.fill_async(0, device_, 1, 64, stream_);
    Event event = context_.events().acquire();
    event.record(stream_);
    EventFrontier users;
    users.add(event);
    return users;
  }
  void TearDown() override { runtime_.run_all(); }
};

TEST_F(DeviceContextTest, EachStreamHasItsOwnRing) {
  UploadRing& ring = context_.ring(stream_);
  EXPECT_EQ(&context_.ring(stream_), &ring);
  EXPECT_NE(&context_.ring(runtime_.create_stream(0)), &ring);
}

// Copies `nbytes` through the ring of `stream`; not complete before the runtime is run.
void copy_through(DeviceContext& context, testing::ScriptedRuntime& runtime, void* device,
                  StreamHandle stream, std::size_t nbytes) {
  const std::shared_ptr<UploadRing> ring = context.ring(StreamRef{0, stream});
  const UploadRing::Slot slot = ring->reserve(nbytes);
  runtime.copy_async(0, device, slot.data(), 64, CopyKind::kHostToDevice, stream);
  Event event = context.events().acquire();
  event.record(stream);
  ring->commit(slot, event);
}

TEST_F(DeviceContextTest, StreamsThatCameAndWentCostNothing) {
  for (int i = 0; i < 1000; ++i) {
    copy_through(context_, runtime_, device_, runtime_.create_stream(0), 4096);
    runtime_.run_all();
  }
  const UploadRingStats stats = context_.ring_stats();
  EXPECT_EQ(stats.in_flight_slots, 0u);
  EXPECT_LE(stats.capacity_nbytes, 16 * UploadRing::kFirstSegmentNbytes);
  EXPECT_LE(context_.pool().stats().allocated_nbytes, std::size_t{8} << 20);
  EXPECT_LE(context_.events().created(), 32u);
}

TEST_F(DeviceContextTest, StreamsInFlightKeepTheirRingsAndTheLimitIsForAllTogether) {
  for (int i = 0; i < 100; ++i) {
    for (int copies = 0; copies < 4; ++copies) {
      copy_through(context_, runtime_, device_, runtime_.create_stream(0), 32 << 10);
    }
  }
  EXPECT_EQ(context_.ring_stats().in_flight_slots, 400u);
  EXPECT_EQ(context_.ring_stats().waits, 0u);
  runtime_.run_all();
  EXPECT_EQ(context_.ring_stats().in_flight_slots, 0u);
}

TEST_F(DeviceContextTest, AStreamWaitsForItsOwnCopiesAloneWhereAnotherHoldsTheLimit) {
  const std::size_t limit = DeviceContext::ring_limit();
  const StreamHandle other = runtime_.create_stream(0);
  constexpr std::size_t kNbytes = 64 << 10;
  for (std::size_t nbytes = 0; nbytes < limit; nbytes += kNbytes) {
    copy_through(context_, runtime_, device_, stream_, kNbytes);
  }
  EXPECT_EQ(context_.ring_stats().in_flight_nbytes, limit);
  // Nothing of the stalled stream runs meanwhile.
  copy_through(context_, runtime_, device_, other, UploadBudget::kShareNbytes);
  EXPECT_EQ(context_.ring_stats().waits, 0u);
  // What it has completed is found out before anybody waits.
  runtime_.run_all();
  for (int i = 0; i < 8; ++i) copy_through(context_, runtime_, device_, other, kNbytes);
  EXPECT_EQ(context_.ring_stats().waits, 0u);
}

TEST_F(DeviceContextTest, AnOwnerIsHeldUntilItsCopiesAreDone) {
  auto owner = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = owner;
  context_.retain(std::move(owner), pending_copy());
  EXPECT_EQ(context_.reap(), 1u);
  EXPECT_FALSE(watch.expired());
  runtime_.run_all();
  EXPECT_EQ(context_.reap(), 0u);
  EXPECT_TRUE(watch.expired());
}

TEST_F(DeviceContextTest, AGraphHoldsItsOwnersAndReleasesThemAtTheNextReap) {
  auto owner = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = owner;
  runtime_.begin_capture(0, stream_);
  context_.retain_in_graph({0, stream_}, std::move(owner));
  const std::uint64_t graph = runtime_.end_capture(0, stream_);
  context_.reap();
  EXPECT_FALSE(watch.expired());
  runtime_.destroy_graph(graph);
  EXPECT_FALSE(watch.expired());
  context_.reap();
  EXPECT_TRUE(watch.expired());
}

TEST_F(DeviceContextTest, AThousandGraphsThatAreGoneLeaveNoOwnersButAFew) {
  std::vector<std::weak_ptr<int>> owners;
  for (int i = 0; i < 1000; ++i) {
    auto owner = std::make_shared<int>(i);
    owners.push_back(owner);
    runtime_.begin_capture(0, stream_);
    context_.retain_in_graph({0, stream_}, std::move(owner));
    runtime_.destroy_graph(runtime_.end_capture(0, stream_));
  }
  const auto held = std::count_if(owners.begin(), owners.end(),
                                  [](const auto& owner) { return !owner.expired(); });
  EXPECT_LE(held, 4);
}

TEST_F(DeviceContextTest, TrimLeavesNoIdleMemoryAndNoIdleEvent) {
  auto block = std::make_shared<PinnedBlock>(context_.pool().allocate(std::size_t{1} << 20));
  context_.retain(std::move(block), pending_copy());
  EXPECT_EQ(context_.trim(), 0u);
  EXPECT_EQ(runtime_.live_events(), 1u);
  runtime_.run_all();
  EXPECT_EQ(context_.trim(), std::size_t{1} << 20);
  EXPECT_EQ(runtime_.pinned_nbytes(), 0u);
  EXPECT_EQ(runtime_.live_events(), 0u);
}

TEST_F(DeviceContextTest, NothingIsReleasedOnceTheContextIsLost) {
  auto owner = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = owner;
  context_.retain(std::move(owner), pending_copy());
  runtime_.fail("query_event", testing::kErrorIllegalAddress, 1, 1, /*sticky=*/true);
  context_.reap();
  EXPECT_EQ(context_.reap(), 1u);
  EXPECT_FALSE(watch.expired());
}

}  // namespace
}  // namespace staging
