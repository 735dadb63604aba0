#include "stream/event_pool.h"

#include <gtest/gtest.h>

#include "support/error.h"
#include "support/scripted_runtime.h"

namespace staging {
namespace {

TEST(EventPoolTest, ReusesWhatNobodyRefersTo) {
  testing::ScriptedRuntime runtime(1);
  EventPool pool(runtime, 0);
  for (int i = 0; i < 100; ++i) pool.acquire().record(nullptr);
  EXPECT_EQ(pool.created(), 1u);
  EXPECT_EQ(pool.idle(), 1u);
  EXPECT_EQ(runtime.calls("create_event"), 1u);
}

TEST(EventPoolTest, AFailedCreationLeavesThePoolAsItWas) {
  testing::ScriptedRuntime runtime(1);
  EventPool pool(runtime, 0);
  runtime.fail("create_event");
  EXPECT_THROW(pool.acquire(), DeviceError);
  EXPECT_EQ(pool.created(), 0u);
  EXPECT_TRUE(pool.acquire());
}

TEST(EventPoolTest, DestroysItsEventsWithItself) {
  testing::ScriptedRuntime runtime(1);
  {
    EventPool pool(runtime, 0);
    const Event a = pool.acquire();
    const Event b = pool.acquire();
    EXPECT_EQ(runtime.live_events(), 2u);
  }
  // The references went first, as they were made last.
  EXPECT_EQ(runtime.live_events(), 0u);
}

TEST(EventPoolTest, TrimDestroysWhatIsIdle) {
  testing::ScriptedRuntime runtime(1);
  EventPool pool(runtime, 0);
  const Event lent = pool.acquire();
  pool.acquire();
  EXPECT_EQ(pool.trim(), 1u);
  EXPECT_EQ(runtime.live_events(), 1u);
  EXPECT_EQ(pool.created(), 1u);
  EXPECT_EQ(pool.idle(), 0u);
  EXPECT_EQ(pool.trim(), 0u);
  pool.acquire();
  EXPECT_EQ(pool.created(), 2u);
}

TEST(EventPoolTest, LeaksRatherThanCallsAfterTheContextIsLost) {
  testing::ScriptedRuntime runtime(1);
  {
    EventPool pool(runtime, 0);
    Event event = pool.acquire();
    runtime.fail("record_event", testing::kErrorIllegalAddress, 1, 1, /*sticky=*/true);
    EXPECT_THROW(event.record(nullptr), DeviceError);
  }
  EXPECT_EQ(runtime.live_events(), 1u);
}

}  // namespace
}  // namespace staging
