#include "stream/event_frontier.h"

#include <gtest/gtest.h>

#include "stream/event_pool.h"
#include "support/scripted_runtime.h"

namespace staging {
namespace {

class EventFrontierTest : public ::testing::Test {
 protected:
  testing::ScriptedRuntime runtime_{1};
  EventPool pool_{runtime_, 0};
  StreamHandle a_ = runtime_.create_stream(0);
  StreamHandle b_ = runtime_.create_stream(0);

  Event record(StreamHandle stream) {
    Event event = pool_.acquire();
    event.record(stream);
    return event;
  }
};

TEST_F(EventFrontierTest, AnOperationReplacesWhatItCameAfter) {
  EventFrontier frontier;
  frontier.add(record(a_));
  const EventFrontier before = frontier;
  const Event next = record(a_);
  frontier.advance(before, next);
  runtime_.reset_calls();
  frontier.wait_on({0, b_});
  EXPECT_EQ(runtime_.calls("stream_wait_event"), 1u);
}

TEST_F(EventFrontierTest, TwoThatOverlapAreBothWaitedFor) {
  EventFrontier frontier;
  const EventFrontier before = frontier;  // both saw nothing
  frontier.advance(before, record(a_));
  frontier.advance(before, record(b_));
  StreamHandle c = runtime_.create_stream(0);
  runtime_.reset_calls();
  frontier.wait_on({0, c});
  EXPECT_EQ(runtime_.calls("stream_wait_event"), 2u);
}

TEST_F(EventFrontierTest, AStreamDoesNotWaitForItself) {
  EventFrontier frontier;
  frontier.add(record(a_));
  runtime_.reset_calls();
  frontier.wait_on({0, a_});
  EXPECT_EQ(runtime_.calls("stream_wait_event"), 0u);
}

TEST_F(EventFrontierTest, IsCompleteWhenAllAre) {
  EventFrontier frontier;
  EXPECT_TRUE(frontier.query());
  frontier.add(record(a_));
  frontier.add(record(b_));
  runtime_.run(0, a_);
  EXPECT_FALSE(frontier.query());
  runtime_.run(0, b_);
  EXPECT_TRUE(frontier.query());
}

TEST_F(EventFrontierTest, WhatIsRemovedIsGoneAndTheRestStays) {
  EventFrontier frontier;
  frontier.add(record(a_));
  const EventFrontier done = frontier;
  frontier.add(record(b_));
  frontier.remove(done);
  EXPECT_FALSE(frontier.empty());
  runtime_.run(0, b_);
  EXPECT_TRUE(frontier.query());
}

}  // namespace
}  // namespace staging
