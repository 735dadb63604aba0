#include "stream/poll.h"

#include <gtest/gtest.h>

namespace staging {
namespace {

using std::chrono::milliseconds;

TEST(PollUntil, AsksOnceWhereTheAnswerIsYes) {
  int asked = 0;
  EXPECT_TRUE(poll_until([&] { return ++asked == 1; }));
  EXPECT_EQ(asked, 1);
}

TEST(PollUntil, AsksUntilTheAnswerIsYes) {
  int asked = 0;
  EXPECT_TRUE(poll_until([&] { return ++asked == 100; }));
  EXPECT_EQ(asked, 100);
}

TEST(PollUntil, GivesUpAtTheDeadlineAfterALastLook) {
  const PollClock::time_point deadline = PollClock::now() + milliseconds(3);
  EXPECT_FALSE(poll_until([] { return false; }, deadline));
  EXPECT_GE(PollClock::now(), deadline);
  bool late = false;
  EXPECT_TRUE(poll_until([&] { return PollClock::now() >= deadline + milliseconds(3) || late; },
                         deadline + milliseconds(3)));
}

TEST(PollUntil, ADeadlineThatHasPassedStillLooksOnce) {
  EXPECT_TRUE(poll_until([] { return true; }, PollClock::time_point::min()));
}

TEST(PollUntil, IsInterrupted) {
  interrupt_check = [] { return true; };
  EXPECT_THROW(poll_until([] { return false; }), Interrupted);
  interrupt_check = nullptr;
}

TEST(PollUntil, HandsOnWhatTheQuestionThrows) {
  EXPECT_THROW(poll_until([]() -> bool { throw 1; }), int);
}

}  // namespace
}  // namespace staging
