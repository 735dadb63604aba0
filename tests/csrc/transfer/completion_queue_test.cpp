#include "transfer/completion_queue.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <thread>

namespace staging {
namespace {

bool readable(const CompletionQueue& queue, int timeout_ms = 0) {
  pollfd descriptor{queue.fd(), POLLIN, 0};
  return ::poll(&descriptor, 1, timeout_ms) == 1;
}

TEST(CompletionQueueTest, IsReadableWhileItHoldsTokens) {
  CompletionQueue queue;
  EXPECT_FALSE(readable(queue));
  queue.expect();
  queue.expect();
  queue.push(7);
  EXPECT_TRUE(readable(queue));
  queue.push(9);
  EXPECT_EQ(queue.drain(), (std::vector<std::uint64_t>{7, 9}));
  EXPECT_FALSE(readable(queue));
  EXPECT_TRUE(queue.drain().empty());
}

TEST(CompletionQueueTest, WakesASleeper) {
  CompletionQueue queue;
  queue.expect();
  std::thread other([&] { queue.push(1); });
  EXPECT_TRUE(readable(queue, 10'000));
  other.join();
}

TEST(CompletionQueueTest, LosesNothingBetweenThreads) {
  CompletionQueue queue;
  constexpr int kThreads = 4, kEach = 1000;
  for (int i = 0; i < kThreads * kEach; ++i) queue.expect();
  std::vector<std::thread> threads;
  for (int id = 0; id < kThreads; ++id) {
    threads.emplace_back([&] {
      for (int i = 0; i < kEach; ++i) queue.push(1);
    });
  }
  std::size_t seen = 0;
  while (seen < kThreads * kEach) {
    ASSERT_TRUE(readable(queue, 10'000));
    seen += queue.drain().size();
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(seen, std::size_t{kThreads * kEach});
}

}  // namespace
}  // namespace staging
