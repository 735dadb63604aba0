// When work runs: what each policy promises, and what all of them keep.
#include "sim/sim_test.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "sim/random.h"

namespace staging::sim {
namespace {

class Schedule : public SimTest {};
class EveryScheduleKeeps : public EverySchedule {};
INSTANTIATE_TEST_SUITE_P(All, EveryScheduleKeeps, STAGING_SIM_SCHEDULES, schedule_name);

// The plain pattern: copy from a pinned array, then overwrite it for the next step.
int steps_with_wrong_bytes(int steps) {
  Pinned host(64);
  DeviceBuffer device(64), log(64 * static_cast<std::size_t>(steps));
  TestStream stream;
  for (int step = 0; step < steps; ++step) {
    std::memset(host.data, step, host.nbytes);
    CUDA_OK(cudaMemcpyAsync(device.data, host.data, 64, cudaMemcpyHostToDevice, stream));
    CUDA_OK(
        cudaMemcpyAsync(log.data + 64 * step, device.data, 64, cudaMemcpyDeviceToDevice, stream));
  }
  const std::vector<unsigned char> seen = log.read();
  int wrong = 0;
  for (int step = 0; step < steps; ++step) {
    wrong += seen[static_cast<std::size_t>(64 * step)] != static_cast<unsigned char>(step);
  }
  return wrong;
}

TEST_F(Schedule, EagerHidesThatAPinnedSourceIsOverwritten) {
  EXPECT_EQ(steps_with_wrong_bytes(100), 0);
}

TEST_F(Schedule, LazyShowsThatAPinnedSourceIsOverwritten) {
  use("lazy");
  EXPECT_EQ(steps_with_wrong_bytes(100), 99);
}

TEST_F(Schedule, RandomShowsThatAPinnedSourceIsOverwrittenInSomeSteps) {
  use("random", 7);
  const int wrong = steps_with_wrong_bytes(100);
  EXPECT_GT(wrong, 0);
  EXPECT_LT(wrong, 99);
}

TEST_F(Schedule, RandomIsAFunctionOfItsSeed) {
  const auto run = [](std::uint64_t seed) {
    use("random", seed);
    return steps_with_wrong_bytes(200);
  };
  const int first = run(11);
  EXPECT_EQ(run(11), first);
  bool differs = false;
  for (std::uint64_t seed = 12; seed < 20; ++seed) differs |= run(seed) != first;
  EXPECT_TRUE(differs);
}

TEST_F(Schedule, NullMovesNothingAndCompletesEverything) {
  DeviceBuffer device(64);
  CUDA_OK(cudaMemset(device.data, 5, 64));
  Pinned host(64, 9);
  TestStream stream;
  TestEvent event;
  use("null");
  CUDA_OK(cudaMemcpyAsync(device.data, host.data, 64, cudaMemcpyHostToDevice, stream));
  CUDA_OK(cudaEventRecord(event, stream));
  CUDA_OK(cudaEventQuery(event));
  CUDA_OK(cudaStreamSynchronize(stream));
  use("eager");
  EXPECT_TRUE(device.holds(5));
}

TEST_F(Schedule, LazyRunsOnlyWhatTheHostWaitsFor) {
  use("lazy");
  Pinned host(64, 1);
  DeviceBuffer a(64), b(64);
  TestStream first, second;
  CUDA_OK(cudaMemcpyAsync(a.data, host.data, 64, cudaMemcpyHostToDevice, first));
  CUDA_OK(cudaMemcpyAsync(b.data, host.data, 64, cudaMemcpyHostToDevice, second));
  EXPECT_EQ(staging_sim_pending(), 2U);
  CUDA_OK(cudaStreamSynchronize(first));
  EXPECT_EQ(staging_sim_pending(), 1U);
}

TEST_F(Schedule, LazyRunsWhatAWaitNeedsFromOtherStreams) {
  use("lazy");
  Pinned host(64, 1);
  DeviceBuffer a(64);
  TestStream first, second;
  TestEvent event;
  CUDA_OK(cudaMemcpyAsync(a.data, host.data, 64, cudaMemcpyHostToDevice, first));
  CUDA_OK(cudaEventRecord(event, first));
  CUDA_OK(cudaStreamWaitEvent(second, event, 0));
  CUDA_OK(cudaStreamSynchronize(second));
  EXPECT_EQ(staging_sim_pending(), 0U);
}

TEST_F(Schedule, APollerGetsThereInTheEnd) {
  for (const char* policy : {"lazy", "random"}) {
    use(policy, 3);
    Pinned host(64, 1);
    DeviceBuffer a(64);
    TestStream stream;
    TestEvent event;
    for (int i = 0; i < 5; ++i) {
      CUDA_OK(cudaMemcpyAsync(a.data, host.data, 64, cudaMemcpyHostToDevice, stream));
    }
    CUDA_OK(cudaEventRecord(event, stream));
    int polls = 0;
    while (cudaEventQuery(event) == cudaErrorNotReady && polls < 10'000) ++polls;
    EXPECT_GT(polls, 0) << policy;
    EXPECT_LT(polls, 10'000) << policy;
  }
}

TEST_F(Schedule, WorkRunsOnItsOwnAfterAWhileWithoutACall) {
  use("lazy");
  staging_sim_set_progress_ms(20);
  Pinned flag(64, 0);
  DeviceBuffer ones(64);
  CUDA_OK(cudaMemset(ones.data, 1, 64));
  CUDA_OK(cudaDeviceSynchronize());
  TestStream stream;
  CUDA_OK(cudaMemcpyAsync(flag.data, ones.data, 64, cudaMemcpyDeviceToHost, stream));
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  volatile unsigned char* const spin = flag.data;
  while (*spin == 0 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  EXPECT_EQ(*spin, 1);
}

TEST_F(Schedule, WorkThatCallsKeepPassingByRunsInTheEnd) {
  use("lazy");
  staging_sim_set_progress_ms(20);
  Pinned flag(64, 0);
  DeviceBuffer ones(64);
  CUDA_OK(cudaMemset(ones.data, 1, 64));
  CUDA_OK(cudaDeviceSynchronize());
  TestStream stream;
  CUDA_OK(cudaMemcpyAsync(flag.data, ones.data, 64, cudaMemcpyDeviceToHost, stream));
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  volatile unsigned char* const spin = flag.data;
  int device = 0;
  while (*spin == 0 && std::chrono::steady_clock::now() < end) {
    CUDA_OK(cudaGetDevice(&device));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(*spin, 1);
}

TEST_F(Schedule, ChangingThePolicyDrainsFirst) {
  use("lazy");
  Pinned host(64, 3);
  DeviceBuffer device(64);
  TestStream stream;
  CUDA_OK(cudaMemcpyAsync(device.data, host.data, 64, cudaMemcpyHostToDevice, stream));
  use("eager");
  EXPECT_EQ(staging_sim_pending(), 0U);
  EXPECT_STREQ(staging_sim_policy(), "eager");
  EXPECT_TRUE(device.holds(3));
}

TEST_F(Schedule, ThePolicyMayChangeWhileOthersEnqueue) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&stop] {
      Pinned host(128 << 10);  // long enough to run without the lock
      DeviceBuffer device(128 << 10);
      TestStream stream;
      while (!stop) {
        CUDA_OK(
            cudaMemcpyAsync(device.data, host.data, host.nbytes, cudaMemcpyHostToDevice, stream));
        CUDA_OK(cudaStreamSynchronize(stream));
      }
    });
  }
  constexpr const char* kPolicies[] = {"lazy", "random", "threads", "eager", "random"};
  for (std::uint64_t i = 0; i < 50; ++i) use(kPolicies[i % 5], i);
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

TEST_F(Schedule, APolicyThatDoesNotExistIsRefused) {
  EXPECT_EQ(staging_sim_set_policy("sometimes", 0), -1);
  EXPECT_STREQ(staging_sim_policy(), "eager");
}

TEST_F(Schedule, AHeldStreamRunsNothingUntilItIsReleased) {
  Pinned host(64, 3);
  DeviceBuffer a(64), b(64);
  TestStream held, free;
  TestEvent event;
  const auto handle = reinterpret_cast<std::uint64_t>(held.handle);
  ASSERT_EQ(staging_sim_hold(handle, 1), 0);
  CUDA_OK(cudaMemcpyAsync(a.data, host.data, 64, cudaMemcpyHostToDevice, held));
  CUDA_OK(cudaEventRecord(event, held));
  CUDA_OK(cudaMemcpyAsync(b.data, host.data, 64, cudaMemcpyHostToDevice, free));
  CUDA_OK(cudaStreamSynchronize(free));
  CUDA_ERROR(cudaEventQuery(event), cudaErrorNotReady);
  EXPECT_EQ(staging_sim_set_policy("lazy", 0), -1);
  ASSERT_EQ(staging_sim_hold(handle, 0), 0);
  CUDA_OK(cudaEventQuery(event));
  EXPECT_EQ(staging_sim_hold(handle, 0), -1);
}

TEST_F(Schedule, WorkCanBeSteppedByHand) {
  use("lazy");
  Pinned host(64, 3);
  DeviceBuffer device(64);
  TestStream stream;
  for (int i = 0; i < 3; ++i) {
    CUDA_OK(cudaMemcpyAsync(device.data, host.data, 64, cudaMemcpyHostToDevice, stream));
  }
  EXPECT_EQ(staging_sim_run_one(), 1);
  EXPECT_EQ(staging_sim_pending(), 2U);
  staging_sim_run_all();
  EXPECT_EQ(staging_sim_pending(), 0U);
  EXPECT_EQ(staging_sim_run_one(), 0);
}

TEST_P(EveryScheduleKeeps, TheOrderOfAStream) {
  Pinned host(256);
  for (int i = 0; i < 256; ++i) host.data[i] = static_cast<unsigned char>(i);
  DeviceBuffer device(1);
  Pinned out(256, 0);
  TestStream stream;
  for (int i = 0; i < 256; ++i) {
    CUDA_OK(cudaMemcpyAsync(device.data, host.data + i, 1, cudaMemcpyHostToDevice, stream));
    CUDA_OK(cudaMemcpyAsync(out.data + i, device.data, 1, cudaMemcpyDeviceToHost, stream));
  }
  CUDA_OK(cudaStreamSynchronize(stream));
  EXPECT_EQ(std::memcmp(host.data, out.data, 256), 0);
}

TEST_P(EveryScheduleKeeps, AChainOfEventsAcrossStreams) {
  DeviceBuffer device(1);
  Pinned host(65), out(65, 0);
  for (int i = 0; i < 65; ++i) host.data[i] = static_cast<unsigned char>(i + 1);
  TestStream streams[2];
  TestEvent event;
  // One event is recorded again at each hand-over: a wait keeps the record that it saw.
  for (int i = 0; i < 65; ++i) {
    TestStream& stream = streams[i % 2];
    if (i > 0) {
      CUDA_OK(cudaStreamWaitEvent(stream, event, 0));
    }
    CUDA_OK(cudaMemcpyAsync(device.data, host.data + i, 1, cudaMemcpyHostToDevice, stream));
    CUDA_OK(cudaMemcpyAsync(out.data + i, device.data, 1, cudaMemcpyDeviceToHost, stream));
    CUDA_OK(cudaEventRecord(event, stream));
  }
  CUDA_OK(cudaEventSynchronize(event));
  EXPECT_EQ(std::memcmp(host.data, out.data, 65), 0);
}

TEST_P(EveryScheduleKeeps, TheLegacyStreamInOrderWithBlockingStreams) {
  DeviceBuffer device(1);
  Pinned host(64), out(64, 0);
  for (int i = 0; i < 64; ++i) host.data[i] = static_cast<unsigned char>(i + 1);
  TestStream blocking[2] = {TestStream(cudaStreamDefault), TestStream(cudaStreamDefault)};
  for (int i = 0; i < 64; ++i) {
    // Every other step on the legacy stream, so that each orders the two around it.
    const cudaStream_t stream = i % 2 == 0 ? nullptr : blocking[i / 2 % 2].handle;
    CUDA_OK(cudaMemcpyAsync(device.data, host.data + i, 1, cudaMemcpyHostToDevice, stream));
    CUDA_OK(cudaMemcpyAsync(out.data + i, device.data, 1, cudaMemcpyDeviceToHost, stream));
  }
  CUDA_OK(cudaDeviceSynchronize());
  EXPECT_EQ(std::memcmp(host.data, out.data, 64), 0);
}

// Random programs over streams of every kind. Each step first copies the array of what is
// done into a snapshot of its own and then marks itself done; a step must have seen every
// step that CUDA orders before it.
TEST_P(EveryScheduleKeeps, WhatHappensBeforeInRandomPrograms) {
  constexpr std::size_t kSteps = 60;
  const char* const given = std::getenv("STAGING_SEED");
  const std::uint64_t first_seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 1;
  for (std::uint64_t seed = first_seed; seed < first_seed + 10; ++seed) {
    SCOPED_TRACE("STAGING_SEED=" + std::to_string(seed));
    Random random(seed);
    TestStream a, b, c(cudaStreamDefault), d(cudaStreamDefault);
    const cudaStream_t streams[] = {a, b, c, d, nullptr};
    constexpr std::size_t kStreams = 5, kFirstBlocking = 2, kLegacy = 4;
    TestEvent events[4];
    Pinned one(1, 1);
    DeviceBuffer done(kSteps), snapshots(kSteps * kSteps);
    CUDA_OK(cudaMemset(done.data, 0, kSteps));
    CUDA_OK(cudaDeviceSynchronize());

    // before[i]: steps that must have completed before step i. frontier[s]: those which
    // the next step on stream s follows. recorded[e]: those that event e stands for.
    using Steps = std::vector<bool>;
    std::vector<Steps> before, frontier(kStreams, Steps(kSteps)), recorded(4, Steps(kSteps));
    const auto merge = [](Steps& into, const Steps& more) {
      for (std::size_t i = 0; i < kSteps; ++i) into[i] = into[i] || more[i];
    };
    // Anything that is put into the legacy stream waits for the blocking ones, and what is
    // put into those waits for the legacy stream.
    const auto order_implicitly = [&](std::size_t s) {
      if (s == kLegacy) {
        for (std::size_t other = kFirstBlocking; other < kLegacy; ++other) {
          merge(frontier[kLegacy], frontier[other]);
        }
      } else if (s >= kFirstBlocking) {
        merge(frontier[s], frontier[kLegacy]);
      }
    };
    for (std::size_t step = 0; step < kSteps;) {
      const std::size_t s = random.below(kStreams), e = random.below(4);
      switch (random.below(5)) {
        case 0:
          CUDA_OK(cudaEventRecord(events[e], streams[s]));
          order_implicitly(s);
          recorded[e] = frontier[s];
          break;
        case 1:
          CUDA_OK(cudaStreamWaitEvent(streams[s], events[e], 0));
          merge(frontier[s], recorded[e]);
          break;
        case 2:
          if (random.chance(100)) {
            CUDA_OK(cudaEventSynchronize(events[e]));
          } else {
            static_cast<void>(cudaEventQuery(events[e]));
          }
          break;
        default:
          CUDA_OK(cudaMemcpyAsync(snapshots.data + step * kSteps, done.data, kSteps,
                                  cudaMemcpyDeviceToDevice, streams[s]));
          CUDA_OK(
              cudaMemcpyAsync(done.data + step, one.data, 1, cudaMemcpyHostToDevice, streams[s]));
          order_implicitly(s);
          before.push_back(frontier[s]);
          frontier[s][step] = true;
          ++step;
      }
    }
    const std::vector<unsigned char> seen = snapshots.read();
    for (std::size_t i = 0; i < kSteps; ++i) {
      for (std::size_t j = 0; j < kSteps; ++j) {
        if (before[i][j]) {
          ASSERT_EQ(seen[i * kSteps + j], 1) << "step " << i << " overtook step " << j;
        }
      }
    }
  }
}

TEST_F(Schedule, NonBlockingStreamsIgnoreTheLegacyStream) {
  use("lazy");
  Pinned host(64, 1);
  DeviceBuffer a(64), b(64);
  TestStream stream;
  CUDA_OK(cudaMemcpyAsync(a.data, host.data, 64, cudaMemcpyHostToDevice, nullptr));
  CUDA_OK(cudaMemcpyAsync(b.data, host.data, 64, cudaMemcpyHostToDevice, stream));
  CUDA_OK(cudaStreamSynchronize(stream));
  EXPECT_EQ(staging_sim_pending(), 1U);
}

TEST_P(EveryScheduleKeeps, ManyThreadsOutOfEachOthersWay) {
  constexpr int kThreads = 4;
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&wrong, t] {
      TestStream stream;
      TestEvent event;
      Pinned host(128), back(128);
      DeviceBuffer device(128);
      for (int i = 0; i < 50; ++i) {
        std::memset(host.data, t * 50 + i, 128);
        CUDA_OK(cudaMemcpyAsync(device.data, host.data, 128, cudaMemcpyHostToDevice, stream));
        CUDA_OK(cudaMemcpyAsync(back.data, device.data, 128, cudaMemcpyDeviceToHost, stream));
        CUDA_OK(cudaEventRecord(event, stream));
        CUDA_OK(cudaEventSynchronize(event));
        wrong += std::memcmp(host.data, back.data, 128) != 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace staging::sim
