#include "transfer/device_context.h"

#include <gtest/gtest.h>

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
