#include "stream/event.h"

#include <gtest/gtest.h>

#include <thread>

#include "stream/event_pool.h"
#include "support/interrupt.h"
#include "support/scripted_runtime.h"

namespace staging {
namespace {

class EventTest : public ::testing::Test {
 protected:
  testing::ScriptedRuntime runtime_{1};
  EventPool pool_{runtime_, 0};
  StreamHandle stream_ = runtime_.create_stream(0);
  void* device_ = runtime_.allocate_device(0, 64);
  std::vector<std::byte> host_ = std::vector<std::byte>(64);

  void enqueue() { runtime_.fill_async(0, device_, 1, 64, stream_); }
};

TEST_F(EventTest, IsCompleteOnceWhatCameBeforeItHasRun) {
  Event event = pool_.acquire();
  enqueue();
  event.record(stream_);
  EXPECT_FALSE(event.query());
  runtime_.run_all();
  EXPECT_TRUE(event.query());
}

TEST_F(EventTest, AsksTheRuntimeNoMoreAfterTheFirstYes) {
  Event event = pool_.acquire();
  event.record(stream_);
  runtime_.run_all();
  ASSERT_TRUE(event.query());
  runtime_.reset_calls();
  EXPECT_TRUE(event.query());
  event.synchronize();
  event.wait_on({0, stream_});
  EXPECT_EQ(runtime_.calls(), 0u);
}

TEST_F(EventTest, IsNotRecordedAgainWhileSomebodyRefersToIt) {
  Event first = pool_.acquire();
  enqueue();
  first.record(stream_);
  Event watcher = first;
  first = {};
  Event second = pool_.acquire();
  EXPECT_NE(second.handle(), watcher.handle());
  second.record(stream_);
  EXPECT_FALSE(watcher.query());
}

TEST_F(EventTest, MakesAnotherStreamWait) {
  StreamHandle other = runtime_.create_stream(0);
  Event event = pool_.acquire();
  enqueue();
  event.record(stream_);
  event.wait_on({0, other});
  EXPECT_FALSE(runtime_.step(0, other));
  runtime_.run(0, stream_);
  EXPECT_TRUE(runtime_.step(0, other));
}

TEST_F(EventTest, ADisturbedWaitEndsAndTheEventIsStillGood) {
  Event event = pool_.acquire();
  enqueue();
  event.record(stream_);
  interrupt_check = [] { return true; };
  EXPECT_THROW(event.synchronize(), Interrupted);
  interrupt_check = nullptr;
  runtime_.run_all();
  EXPECT_NO_THROW(event.synchronize());
}

TEST_F(EventTest, SynchronizeEndsWhenAnotherThreadGetsThere) {
  Event event = pool_.acquire();
  enqueue();
  event.record(stream_);
  std::thread runner([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    runtime_.run_all();
  });
  event.synchronize();
  EXPECT_TRUE(event.query());
  runner.join();
}

}  // namespace
}  // namespace staging
