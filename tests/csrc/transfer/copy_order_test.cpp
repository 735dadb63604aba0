#include "transfer/copy_order.h"

#include <gtest/gtest.h>

#include <thread>

#include "stream/event_pool.h"
#include "support/error.h"
#include "support/interrupt.h"
#include "support/scripted_runtime.h"

namespace staging {
namespace {

class CopyOrderTest : public ::testing::Test {
 protected:
  testing::ScriptedRuntime runtime_{1};
  EventPool events_{runtime_, 0};
  StreamRef a_{0, runtime_.create_stream(0)};
  StreamRef b_{0, runtime_.create_stream(0)};
  void* device_ = runtime_.allocate_device(0, 64);
  CopyOrder order_{runtime_};

  void operate(StreamRef stream, bool uses_host) {
    CopyOrder::Turn turn(order_);
    turn.wait_on(stream);
    runtime_.fill_async(0, device_, 1, 64, stream.handle);
    Event event = events_.acquire();
    event.record(stream);
    turn.done(std::move(event), uses_host);
  }
  void TearDown() override { runtime_.run_all(); }
};

TEST_F(CopyOrderTest, AnOperationOnAnotherStreamWaitsForTheOneBefore) {
  operate(a_, false);
  operate(b_, false);
  EXPECT_FALSE(runtime_.step(0, b_.handle));
  runtime_.run(0, a_.handle);
  EXPECT_TRUE(runtime_.step(0, b_.handle));
}

TEST_F(CopyOrderTest, TheOrderPassesThroughAllStreams) {
  StreamRef c{0, runtime_.create_stream(0)};
  operate(a_, false);
  operate(b_, false);
  operate(c, false);
  EXPECT_FALSE(runtime_.step(0, c.handle));
  runtime_.run(0, a_.handle);
  EXPECT_FALSE(runtime_.step(0, c.handle));
  runtime_.run(0, b_.handle);
  EXPECT_TRUE(runtime_.step(0, c.handle));
}

TEST_F(CopyOrderTest, TheFirstOperationComesBehindTheFill) {
  runtime_.fill_async(0, device_, 0, 64, a_.handle);
  Event fill = events_.acquire();
  fill.record(a_);
  order_.begin_behind(std::move(fill));
  EXPECT_FALSE(order_.last());  // the array's allocator knows of it
  operate(b_, false);
  EXPECT_TRUE(order_.last());
  EXPECT_FALSE(runtime_.step(0, b_.handle));
  runtime_.run(0, a_.handle);
  EXPECT_TRUE(runtime_.step(0, b_.handle));
}

TEST_F(CopyOrderTest, OnTheStreamOfTheFillTheFirstOperationWaitsForNothing) {
  Event fill = events_.acquire();
  fill.record(a_);
  order_.begin_behind(std::move(fill));
  operate(a_, false);
  EXPECT_EQ(runtime_.calls("stream_wait_event"), 0u);
  EXPECT_EQ(events_.idle(), 1u);  // nothing keeps the fill's event
}

TEST_F(CopyOrderTest, AMembersFirstOperationComesBehindTheGroupsFill) {
  auto group = std::make_shared<CopyOrder>(runtime_);
  CopyOrder member(runtime_, group);
  runtime_.fill_async(0, device_, 0, 64, a_.handle);
  Event fill = events_.acquire();
  fill.record(a_);
  group->begin_behind(std::move(fill));
  CopyOrder::Turn turn(member);
  turn.wait_on(b_);
  runtime_.fill_async(0, device_, 1, 64, b_.handle);
  EXPECT_FALSE(runtime_.step(0, b_.handle));
  runtime_.run(0, a_.handle);
  turn.wait_fill();
  EXPECT_TRUE(runtime_.step(0, b_.handle));
}

TEST_F(CopyOrderTest, AStreamWithAnEarlierOnesHandleIsAnotherStream) {
  StreamRef before = a_, after = a_;
  before.id = 1;
  after.id = 2;
  operate(before, false);
  runtime_.reset_calls();
  operate(after, false);
  EXPECT_EQ(runtime_.calls("stream_wait_event"), 1u);
}

TEST_F(CopyOrderTest, TheHostArrayIsTheDevicesUntilItsLastUserIsDone) {
  EXPECT_FALSE(order_.host_in_flight());
  operate(a_, true);
  operate(a_, false);
  EXPECT_TRUE(order_.host_in_flight());
  runtime_.step(0, a_.handle);
  runtime_.step(0, a_.handle);
  EXPECT_FALSE(order_.host_in_flight());
  EXPECT_EQ(runtime_.pending(), 2u);
}

TEST_F(CopyOrderTest, ATurnInWhichNothingWasEnqueuedChangesNothing) {
  operate(a_, true);
  {
    CopyOrder::Turn turn(order_);
  }
  EXPECT_TRUE(order_.host_in_flight());
}

TEST_F(CopyOrderTest, OneThreadAtATimeHasItsTurn) {
  std::atomic<int> inside{0};
  std::atomic<bool> together{false};
  std::vector<std::thread> threads;
  for (int id = 0; id < 4; ++id) {
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) {
        CopyOrder::Turn turn(order_);
        if (++inside != 1) together = true;
        std::this_thread::yield();
        --inside;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(together);
}

TEST_F(CopyOrderTest, AWaitForATurnCanBeInterrupted) {
  CopyOrder::Turn turn(order_);
  interrupt_check = [] { return true; };
  std::thread other([&] { EXPECT_THROW(CopyOrder::Turn second(order_), Interrupted); });
  other.join();
  interrupt_check = nullptr;
}

TEST_F(CopyOrderTest, ASignalHandlerThatInterruptsATurnIsRefusedAndDoesNotHang) {
  CopyOrder::Turn turn(order_);
  EXPECT_THROW(CopyOrder::Turn second(order_), StateError);
}

TEST_F(CopyOrderTest, ALostOperationIsWaitedForByTheNextOne) {
  runtime_.fail("synchronize_stream");
  {
    CopyOrder::Turn turn(order_);
    runtime_.fill_async(0, device_, 1, 64, a_.handle);
    EXPECT_FALSE(turn.lost(a_));
  }
  EXPECT_TRUE(order_.host_in_flight());
  EXPECT_TRUE(order_.host_lost());
  operate(b_, false);
  EXPECT_EQ(runtime_.pending(0, a_.handle), 0u);
  EXPECT_FALSE(order_.host_in_flight());
}

}  // namespace
}  // namespace staging
