#include "kernels/host_fiber.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace staging::kernels {
namespace {

struct Counter {
  explicit Counter(int step) : step(step), fiber(&Counter::run, this) {}

  static void run(void* self) {
    // Values that live in registers and on the stack survive the switches.
    for (Counter& counter = *static_cast<Counter*>(self);; counter.fiber.suspend()) {
      int sum = 0;
      double half = 0.5;
      for (int i = 0; i < 3; ++i) {
        sum += counter.step;
        half *= 2;
        counter.seen.push_back(sum);
        counter.fiber.suspend();
      }
      counter.total += half;
    }
  }

  int step;
  std::vector<int> seen;
  double total = 0;
  Fiber fiber;
};

TEST(Fiber, GoesOnWhereItWasSuspended) {
  Counter one(1), ten(10);
  for (int i = 0; i < 8; ++i) {
    one.fiber.resume();
    ten.fiber.resume();
  }
  EXPECT_EQ(one.seen, (std::vector<int>{1, 2, 3, 1, 2, 3}));
  EXPECT_EQ(ten.seen, (std::vector<int>{10, 20, 30, 10, 20, 30}));
  EXPECT_EQ(one.total, 8.0);
}

TEST(Fiber, BeginsAtTheFirstResume) {
  Counter counter(1);
  EXPECT_TRUE(counter.seen.empty());
}

struct Catcher {
  static void run(void* self) {
    Catcher& catcher = *static_cast<Catcher*>(self);
    try {
      throw std::runtime_error("inside");
    } catch (const std::exception& error) {
      catcher.caught = error.what();
    }
    catcher.fiber.suspend();
  }

  std::string caught;
  Fiber fiber{&Catcher::run, this};
};

TEST(Fiber, ThrowsAndCatchesOnItsOwnStack) {
  Catcher catcher;
  catcher.fiber.resume();
  EXPECT_EQ(catcher.caught, "inside");
}

struct Nested {
  static void run(void* self) {
    Nested& nested = *static_cast<Nested*>(self);
    Catcher inner;
    inner.fiber.resume();
    nested.caught = inner.caught;
    nested.fiber.suspend();
  }

  std::string caught;
  Fiber fiber{&Nested::run, this};
};

TEST(Fiber, MayResumeAnotherOne) {
  Nested nested;
  nested.fiber.resume();
  EXPECT_EQ(nested.caught, "inside");
}

}  // namespace
}  // namespace staging::kernels
