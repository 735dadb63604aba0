// Graphs: launches, external events, user objects.
#include "sim/sim_test.h"

#include <atomic>
#include <functional>

namespace staging::sim {
namespace {

class Graph : public SimTest {
 protected:
  // Captures what `body` enqueues on a stream of its own.
  static cudaGraphExec_t capture(const std::function<void(cudaStream_t)>& body,
                                 cudaGraph_t* keep = nullptr) {
    TestStream stream;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    body(stream);
    CUDA_OK(cudaStreamEndCapture(stream, &graph));
    CUDA_OK(cudaGraphInstantiate(&exec, graph, 0));
    if (keep != nullptr) {
      *keep = graph;
    } else {
      CUDA_OK(cudaGraphDestroy(graph));
    }
    return exec;
  }
};

class GraphAlways : public Graph,
                    public testing::WithParamInterface<std::pair<const char*, std::uint64_t>> {
 protected:
  void SetUp() override {
    Graph::SetUp();
    use(GetParam().first, GetParam().second);
  }
};
INSTANTIATE_TEST_SUITE_P(All, GraphAlways, STAGING_SIM_SCHEDULES, schedule_name);

TEST_P(GraphAlways, EachLaunchReadsItsSourceAnew) {
  Pinned host(64, 1);
  DeviceBuffer device(64);
  const cudaGraphExec_t exec = capture([&](cudaStream_t stream) {
    CUDA_OK(cudaMemcpyAsync(device.data, host.data, 64, cudaMemcpyHostToDevice, stream));
  });
  TestStream stream;
  for (int value = 2; value < 6; ++value) {
    std::memset(host.data, value, 64);
    CUDA_OK(cudaGraphLaunch(exec, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_TRUE(device.holds(value));
  }
  CUDA_OK(cudaGraphExecDestroy(exec));
}

TEST_P(GraphAlways, LaunchesAreOrderedInTheirStreamAndAmongThemselves) {
  Pinned host(32), out(32, 0);
  for (int i = 0; i < 32; ++i) host.data[i] = static_cast<unsigned char>(i + 1);
  DeviceBuffer in(1), device(1);
  const cudaGraphExec_t exec = capture([&](cudaStream_t stream) {
    CUDA_OK(cudaMemcpyAsync(device.data, in.data, 1, cudaMemcpyDeviceToDevice, stream));
  });
  TestStream stream;
  for (int i = 0; i < 32; ++i) {
    CUDA_OK(cudaMemcpyAsync(in.data, host.data + i, 1, cudaMemcpyHostToDevice, stream));
    CUDA_OK(cudaGraphLaunch(exec, stream));
    CUDA_OK(cudaMemcpyAsync(out.data + i, device.data, 1, cudaMemcpyDeviceToHost, stream));
  }
  CUDA_OK(cudaStreamSynchronize(stream));
  EXPECT_EQ(std::memcmp(host.data, out.data, 32), 0);
  CUDA_OK(cudaGraphExecDestroy(exec));
}

TEST_P(GraphAlways, BranchesKeepTheirEdges) {
  Pinned host(2), out(2, 0);
  host.data[0] = 10;
  host.data[1] = 20;
  DeviceBuffer device(2);
  TestStream fork;
  TestEvent begin, end;
  std::atomic<int> calls{0};
  const cudaGraphExec_t exec = capture([&](cudaStream_t stream) {
    CUDA_OK(cudaMemsetAsync(device.data, 0, 2, stream));
    CUDA_OK(cudaEventRecord(begin, stream));
    CUDA_OK(cudaStreamWaitEvent(fork, begin, 0));
    CUDA_OK(cudaMemcpyAsync(device.data, host.data, 1, cudaMemcpyHostToDevice, stream));
    CUDA_OK(cudaMemcpyAsync(device.data + 1, host.data + 1, 1, cudaMemcpyHostToDevice, fork));
    CUDA_OK(
        cudaLaunchHostFunc(fork, [](void* n) { ++*static_cast<std::atomic<int>*>(n); }, &calls));
    CUDA_OK(cudaEventRecord(end, fork));
    CUDA_OK(cudaStreamWaitEvent(stream, end, 0));
    CUDA_OK(cudaMemcpyAsync(out.data, device.data, 2, cudaMemcpyDeviceToHost, stream));
  });
  TestStream stream;
  for (int i = 1; i <= 10; ++i) {
    std::memset(out.data, 0, 2);
    CUDA_OK(cudaGraphLaunch(exec, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_EQ(std::memcmp(host.data, out.data, 2), 0);
    EXPECT_EQ(calls, i);
  }
  CUDA_OK(cudaGraphExecDestroy(exec));
}

TEST_P(GraphAlways, AnExternalRecordIsWaitedForOutside) {
  Pinned host(64, 1);
  DeviceBuffer device(64), log(64 * 10);
  TestEvent event;
  const cudaGraphExec_t exec = capture([&](cudaStream_t stream) {
    CUDA_OK(cudaMemcpyAsync(device.data, host.data, 64, cudaMemcpyHostToDevice, stream));
    CUDA_OK(cudaEventRecordWithFlags(event, stream, cudaEventRecordExternal));
  });
  CUDA_OK(cudaEventQuery(event));  // not launched yet
  TestStream stream;
  for (int i = 0; i < 10; ++i) {
    CUDA_OK(cudaEventSynchronize(event));  // the last launch has read its source
    std::memset(host.data, i, 64);
    CUDA_OK(cudaGraphLaunch(exec, stream));
    CUDA_OK(cudaMemcpyAsync(log.data + 64 * i, device.data, 64, cudaMemcpyDeviceToDevice, stream));
  }
  const std::vector<unsigned char> seen = log.read();
  for (int i = 0; i < 10; ++i) EXPECT_EQ(seen[static_cast<std::size_t>(64 * i)], i);
  CUDA_OK(cudaGraphExecDestroy(exec));
}

TEST_F(Graph, AnExternalRecordIsNotReadyBeforeTheLaunchHasReachedIt) {
  use("lazy");
  DeviceBuffer device(64);
  TestEvent event;
  const cudaGraphExec_t exec = capture([&](cudaStream_t stream) {
    CUDA_OK(cudaMemsetAsync(device.data, 1, 64, stream));
    CUDA_OK(cudaEventRecordWithFlags(event, stream, cudaEventRecordExternal));
  });
  TestStream stream;
  CUDA_OK(cudaGraphLaunch(exec, stream));
  CUDA_ERROR(cudaEventQuery(event), cudaErrorNotReady);
  CUDA_OK(cudaEventSynchronize(event));
  CUDA_OK(cudaGraphExecDestroy(exec));
}

TEST_P(GraphAlways, AnExternalWaitWaitsForWorkOutside) {
  Pinned host(1, 9);
  DeviceBuffer source(1), device(1);
  TestStream outside, stream;
  TestEvent event;
  const cudaGraphExec_t exec = capture([&](cudaStream_t s) {
    CUDA_OK(cudaStreamWaitEvent(s, event, cudaEventWaitExternal));
    CUDA_OK(cudaMemcpyAsync(device.data, source.data, 1, cudaMemcpyDeviceToDevice, s));
  });
  for (int i = 0; i < 10; ++i) {
    host.data[0] = static_cast<unsigned char>(i);
    CUDA_OK(cudaMemcpyAsync(source.data, host.data, 1, cudaMemcpyHostToDevice, outside));
    CUDA_OK(cudaEventRecord(event, outside));
    CUDA_OK(cudaGraphLaunch(exec, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    EXPECT_TRUE(device.holds(i));
  }
  CUDA_OK(cudaGraphExecDestroy(exec));
}

TEST_F(Graph, AnUnpinnedSourceIsReadAtEachLaunch) {
  std::vector<unsigned char> host(64, 1);
  DeviceBuffer device(64);
  const cudaGraphExec_t exec = capture([&](cudaStream_t stream) {
    CUDA_OK(cudaMemcpyAsync(device.data, host.data(), 64, cudaMemcpyHostToDevice, stream));
  });
  std::fill(host.begin(), host.end(), 2);
  CUDA_OK(cudaGraphLaunch(exec, nullptr));
  EXPECT_TRUE(device.holds(2));
  CUDA_OK(cudaGraphExecDestroy(exec));
}

TEST_F(Graph, ALaunchThatUsesFreedMemoryIsFatalAndReported) {
  Pinned host(64, 1);
  void* device = nullptr;
  CUDA_OK(cudaMalloc(&device, 64));
  const cudaGraphExec_t exec = capture([&](cudaStream_t stream) {
    CUDA_OK(cudaMemcpyAsync(device, host.data, 64, cudaMemcpyHostToDevice, stream));
  });
  CUDA_OK(cudaFree(device));
  CUDA_ERROR(cudaGraphLaunch(exec, nullptr), cudaErrorIllegalAddress);
  EXPECT_EQ(report_kinds(), std::vector<std::string>{"use-after-free"});
  staging_sim_recover();
  CUDA_OK(cudaGraphExecDestroy(exec));
}

TEST_F(Graph, FreeingWhatALaunchInFlightUsesIsReported) {
  use("lazy");
  Pinned host(64, 1);
  void* device = nullptr;
  CUDA_OK(cudaMalloc(&device, 64));
  const cudaGraphExec_t exec = capture([&](cudaStream_t stream) {
    CUDA_OK(cudaMemcpyAsync(device, host.data, 64, cudaMemcpyHostToDevice, stream));
  });
  CUDA_OK(cudaGraphLaunch(exec, nullptr));
  CUDA_OK(cudaFree(device));
  EXPECT_EQ(report_kinds(), std::vector<std::string>{"free-in-flight"});
  CUDA_OK(cudaGraphExecDestroy(exec));
}

TEST_P(GraphAlways, UserObjectsLiveAsLongAsWhatRetainsThem) {
  static std::atomic<int> destroyed;
  destroyed = 0;
  DeviceBuffer device(64);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  TestStream stream;
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  CUDA_OK(cudaMemsetAsync(device.data, 1, 64, stream));
  cudaUserObject_t object = nullptr;
  CUDA_OK(cudaUserObjectCreate(
      &object, nullptr, [](void*) { ++destroyed; }, 1, cudaUserObjectNoDestructorSync));
  cudaStreamCaptureStatus state = cudaStreamCaptureStatusNone;
  cudaGraph_t building = nullptr;
  CUDA_OK(cudaStreamGetCaptureInfo(stream, &state, nullptr, &building, nullptr, nullptr, nullptr));
  CUDA_OK(cudaGraphRetainUserObject(building, object, 1, cudaGraphUserObjectMove));
  CUDA_OK(cudaStreamEndCapture(stream, &graph));
  CUDA_OK(cudaGraphInstantiate(&exec, graph, 0));
  CUDA_OK(cudaGraphDestroy(graph));
  staging_sim_run_all();
  EXPECT_EQ(destroyed, 0);
  // Destroyed in flight: the launch keeps it.
  const auto handle = reinterpret_cast<std::uint64_t>(stream.handle);
  ASSERT_EQ(staging_sim_hold(handle, 1), 0);
  CUDA_OK(cudaGraphLaunch(exec, stream));
  CUDA_OK(cudaGraphExecDestroy(exec));
  CUDA_ERROR(cudaGraphLaunch(exec, stream), cudaErrorInvalidValue);
  EXPECT_EQ(destroyed, 0);
  ASSERT_EQ(staging_sim_hold(handle, 0), 0);
  staging_sim_run_all();
  EXPECT_EQ(destroyed, 1);
}

TEST_F(Graph, UserObjectsAreCounted) {
  static std::atomic<int> destroyed;
  destroyed = 0;
  cudaUserObject_t object = nullptr;
  const auto destroy = [](void*) { ++destroyed; };
  CUDA_ERROR(cudaUserObjectCreate(&object, nullptr, destroy, 0, cudaUserObjectNoDestructorSync),
             cudaErrorInvalidValue);
  CUDA_ERROR(cudaUserObjectCreate(&object, nullptr, destroy, 1, 0), cudaErrorInvalidValue);
  CUDA_OK(cudaUserObjectCreate(&object, nullptr, destroy, 1, cudaUserObjectNoDestructorSync));
  CUDA_OK(cudaUserObjectRetain(object, 2));
  CUDA_OK(cudaUserObjectRelease(object, 2));
  staging_sim_run_all();
  EXPECT_EQ(destroyed, 0);
  CUDA_OK(cudaUserObjectRelease(object, 1));
  staging_sim_run_all();
  EXPECT_EQ(destroyed, 1);
}

TEST_F(Graph, AnUpdateTakesTheOtherGraphsWork) {
  Pinned host(64, 1);
  DeviceBuffer first(64), second(64);
  CUDA_OK(cudaMemset(second.data, 0, 64));
  const auto copy_to = [&](DeviceBuffer& device) {
    return [&](cudaStream_t stream) {
      CUDA_OK(cudaMemcpyAsync(device.data, host.data, 64, cudaMemcpyHostToDevice, stream));
    };
  };
  const cudaGraphExec_t exec = capture(copy_to(first));
  cudaGraph_t graph = nullptr, empty = nullptr;
  const cudaGraphExec_t other = capture(copy_to(second), &graph);
  cudaGraphExecUpdateResultInfo result = {};
  CUDA_OK(cudaGraphExecUpdate(exec, graph, &result));
  EXPECT_EQ(result.result, cudaGraphExecUpdateSuccess);
  CUDA_OK(cudaGraphLaunch(exec, nullptr));
  EXPECT_TRUE(second.holds(1));
  CUDA_OK(cudaGraphCreate(&empty, 0));
  CUDA_ERROR(cudaGraphExecUpdate(exec, empty, &result), cudaErrorGraphExecUpdateFailure);
  EXPECT_EQ(result.result, cudaGraphExecUpdateErrorTopologyChanged);
  CUDA_OK(cudaGraphDestroy(empty));
  CUDA_OK(cudaGraphDestroy(graph));
  CUDA_OK(cudaGraphExecDestroy(exec));
  CUDA_OK(cudaGraphExecDestroy(other));
}

TEST_F(Graph, ACycleIsNotInstantiated) {
  cudaGraph_t graph = nullptr;
  cudaGraphNode_t a = nullptr, b = nullptr;
  CUDA_OK(cudaGraphCreate(&graph, 0));
  CUDA_OK(cudaGraphAddEmptyNode(&a, graph, nullptr, 0));
  CUDA_OK(cudaGraphAddEmptyNode(&b, graph, &a, 1));
  CUDA_OK(cudaGraphAddDependencies(graph, &b, &a, nullptr, 1));
  cudaGraphExec_t exec = nullptr;
  CUDA_ERROR(cudaGraphInstantiate(&exec, graph, 0), cudaErrorInvalidValue);
  std::size_t edges = 0;
  CUDA_OK(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges));
  EXPECT_EQ(edges, 2U);
  CUDA_OK(cudaGraphDestroy(graph));
}

TEST_F(Graph, HandlesAreCountedForLeakTests) {
  struct staging_sim_objects before = {}, during = {}, after = {};
  staging_sim_objects(&before);
  const cudaGraphExec_t exec = capture([](cudaStream_t) {});
  staging_sim_objects(&during);
  CUDA_OK(cudaGraphExecDestroy(exec));
  staging_sim_objects(&after);
  EXPECT_EQ(during.executables, before.executables + 1);
  EXPECT_EQ(during.graphs, before.graphs);
  EXPECT_EQ(after.executables, before.executables);
}

// What CUDA can capture and the stand-in cannot: not supported, by name, rather than an error that
// CUDA would not give.
TEST_F(Graph, WhatCannotBeCapturedHereSaysSo) {
  cudaGraph_t empty = nullptr, graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  CUDA_OK(cudaGraphCreate(&empty, 0));
  CUDA_OK(cudaGraphInstantiate(&exec, empty, 0));
  CUDA_ERROR(cudaGraphInstantiate(&exec, empty, cudaGraphInstantiateFlagDeviceLaunch),
             cudaErrorNotSupported);
  CUDA_ERROR(cudaGraphInstantiate(&exec, empty, 1ULL << 40), cudaErrorInvalidValue);
  TestStream stream;
  void* pointer = nullptr;
  for (const bool launch : {true, false}) {
    CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CUDA_ERROR(launch ? cudaGraphLaunch(exec, stream) : cudaMallocAsync(&pointer, 64, stream),
               cudaErrorNotSupported);
    CUDA_ERROR(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
  }
  EXPECT_EQ(report_kinds(), std::vector<std::string>(3, "unmodelled-call"));
  CUDA_OK(cudaGraphExecDestroy(exec));
  CUDA_OK(cudaGraphDestroy(empty));
}

}  // namespace
}  // namespace staging::sim
