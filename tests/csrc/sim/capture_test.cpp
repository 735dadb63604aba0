// Stream capture: what is captured, what is prohibited to whom, what breaks it.
#include "sim/sim_test.h"

#include <thread>

namespace staging::sim {
namespace {

class Capture : public SimTest {
 protected:
  static cudaStreamCaptureStatus status(cudaStream_t stream) {
    cudaStreamCaptureStatus result = cudaStreamCaptureStatusNone;
    CUDA_OK(cudaStreamIsCapturing(stream, &result));
    return result;
  }
  static void expect_broken(cudaStream_t stream) {
    EXPECT_EQ(status(stream), cudaStreamCaptureStatusInvalidated);
    cudaGraph_t graph = reinterpret_cast<cudaGraph_t>(1);
    CUDA_ERROR(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(graph, nullptr);
    EXPECT_EQ(status(stream), cudaStreamCaptureStatusNone);
  }
  static std::size_t end(cudaStream_t stream) {
    cudaGraph_t graph = nullptr;
    CUDA_OK(cudaStreamEndCapture(stream, &graph));
    std::size_t nodes = 0;
    CUDA_OK(cudaGraphGetNodes(graph, nullptr, &nodes));
    CUDA_OK(cudaGraphDestroy(graph));
    return nodes;
  }
};

TEST_F(Capture, WorkIsRecordedAndNotRun) {
  Pinned host(64, 1);
  DeviceBuffer device(64);
  CUDA_OK(cudaMemset(device.data, 0, 64));
  TestStream stream;
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  EXPECT_EQ(status(stream), cudaStreamCaptureStatusActive);
  CUDA_OK(cudaMemcpyAsync(device.data, host.data, 64, cudaMemcpyHostToDevice, stream));
  CUDA_OK(cudaMemsetAsync(device.data, 4, 64, stream));
  CUDA_OK(cudaLaunchHostFunc(stream, [](void*) {}, nullptr));
  EXPECT_EQ(end(stream), 3U);
  EXPECT_TRUE(device.holds(0));
}

TEST_F(Capture, TheLegacyStreamCannotBeCaptured) {
  CUDA_ERROR(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal),
             cudaErrorStreamCaptureUnsupported);
}

TEST_F(Capture, TwiceOnOneStreamIsIllegal) {
  TestStream stream;
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  CUDA_ERROR(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaErrorIllegalState);
  EXPECT_EQ(end(stream), 0U);
  cudaGraph_t graph = nullptr;
  CUDA_ERROR(cudaStreamEndCapture(stream, &graph), cudaErrorIllegalState);
}

TEST_F(Capture, WaitingForACapturingStreamBreaksItsCapture) {
  for (const bool wait : {true, false}) {
    TestStream stream;
    CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    CUDA_ERROR(wait ? cudaStreamSynchronize(stream) : cudaStreamQuery(stream),
               cudaErrorStreamCaptureUnsupported);
    expect_broken(stream);
  }
}

TEST_F(Capture, ABrokenCaptureRefusesWork) {
  DeviceBuffer device(64);
  TestStream stream;
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  static_cast<void>(cudaStreamSynchronize(stream));
  CUDA_ERROR(cudaMemsetAsync(device.data, 0, 64, stream), cudaErrorStreamCaptureInvalidated);
  expect_broken(stream);
}

TEST_F(Capture, UnsafeCallsOfTheCapturingThreadBreakIt) {
  for (const auto mode : {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal}) {
    TestStream stream;
    CUDA_OK(cudaStreamBeginCapture(stream, mode));
    void* pointer = nullptr;
    CUDA_ERROR(cudaMalloc(&pointer, 64), cudaErrorStreamCaptureUnsupported);
    expect_broken(stream);
  }
}

TEST_F(Capture, ARelaxedCaptureSurvivesUnsafeCalls) {
  TestStream stream;
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  void* pointer = nullptr;
  CUDA_OK(cudaMalloc(&pointer, 64));
  CUDA_OK(cudaFree(pointer));
  EXPECT_EQ(end(stream), 0U);
}

// pytorch #104555, #146924: a query or an allocation anywhere breaks a global capture.
TEST_F(Capture, UnsafeCallsOfOtherThreadsBreakAGlobalCapture) {
  TestEvent event;
  const std::pair<const char*, cudaError_t (*)(cudaEvent_t)> unsafe[] = {
      {"cudaEventQuery", [](cudaEvent_t e) { return cudaEventQuery(e); }},
      {"cudaEventSynchronize", [](cudaEvent_t e) { return cudaEventSynchronize(e); }},
      {"cudaMalloc",
       [](cudaEvent_t) {
         void* pointer = nullptr;
         return cudaMalloc(&pointer, 64);
       }},
      {"cudaHostAlloc",
       [](cudaEvent_t) {
         void* pointer = nullptr;
         return cudaHostAlloc(&pointer, 64, 0);
       }},
      {"cudaDeviceSynchronize", [](cudaEvent_t) { return cudaDeviceSynchronize(); }},
  };
  for (const auto& [name, call] : unsafe) {
    TestStream stream;
    CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    cudaError_t result = cudaSuccess;
    std::thread([&, call = call] { result = call(event); }).join();
    CUDA_ERROR(result, cudaErrorStreamCaptureUnsupported) << name;
    expect_broken(stream);
  }
}

TEST_F(Capture, OtherThreadsDoNotDisturbAThreadLocalCapture) {
  TestStream stream;
  TestEvent event;
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  cudaError_t result = cudaErrorUnknown;
  std::thread([&] { result = cudaEventQuery(event); }).join();
  CUDA_OK(result);
  EXPECT_EQ(end(stream), 0U);
}

TEST_F(Capture, AThreadInRelaxedModeDoesNotDisturbAGlobalCapture) {
  TestStream stream;
  TestEvent event;
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  cudaError_t result = cudaErrorUnknown;
  std::thread([&] {
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    CUDA_OK(cudaThreadExchangeStreamCaptureMode(&mode));
    EXPECT_EQ(mode, cudaStreamCaptureModeGlobal);
    result = cudaEventQuery(event);
    CUDA_OK(cudaThreadExchangeStreamCaptureMode(&mode));
    EXPECT_EQ(mode, cudaStreamCaptureModeRelaxed);
  }).join();
  CUDA_OK(result);
  EXPECT_EQ(end(stream), 0U);
}

TEST_F(Capture, EnqueuingOnOtherStreamsIsSafe) {
  Pinned host(64, 1);
  DeviceBuffer device(64);
  TestStream capturing, other;
  TestEvent event;
  CUDA_OK(cudaStreamBeginCapture(capturing, cudaStreamCaptureModeGlobal));
  CUDA_OK(cudaMemcpyAsync(device.data, host.data, 64, cudaMemcpyHostToDevice, other));
  CUDA_OK(cudaEventRecord(event, other));
  EXPECT_EQ(end(capturing), 0U);
}

TEST_F(Capture, AnotherThreadCannotEndItUnlessItIsRelaxed) {
  TestStream stream;
  cudaGraph_t graph = nullptr;
  cudaError_t result = cudaSuccess;
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  std::thread([&] { result = cudaStreamEndCapture(stream, &graph); }).join();
  CUDA_ERROR(result, cudaErrorStreamCaptureWrongThread);
  EXPECT_EQ(end(stream), 0U);
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  std::thread([&] { result = cudaStreamEndCapture(stream, &graph); }).join();
  CUDA_OK(result);
  CUDA_OK(cudaGraphDestroy(graph));
}

TEST_F(Capture, AnEventOfACaptureCannotBeAskedOrWaitedFor) {
  for (const bool query : {true, false}) {
    TestStream stream;
    TestEvent event;
    CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    CUDA_OK(cudaEventRecord(event, stream));
    CUDA_ERROR(query ? cudaEventQuery(event) : cudaEventSynchronize(event), cudaErrorCapturedEvent);
    expect_broken(stream);
  }
}

TEST_F(Capture, AnotherStreamJoinsThroughAnEventAndMustBeJoined) {
  DeviceBuffer device(64);
  TestStream origin, fork;
  TestEvent begin, end_event;
  CUDA_OK(cudaStreamBeginCapture(origin, cudaStreamCaptureModeGlobal));
  CUDA_OK(cudaEventRecord(begin, origin));
  CUDA_OK(cudaStreamWaitEvent(fork, begin, 0));
  EXPECT_EQ(status(fork), cudaStreamCaptureStatusActive);
  CUDA_OK(cudaMemsetAsync(device.data, 1, 64, fork));
  CUDA_OK(cudaEventRecord(end_event, fork));
  CUDA_OK(cudaStreamWaitEvent(origin, end_event, 0));
  EXPECT_EQ(end(origin), 1U);
  EXPECT_EQ(status(fork), cudaStreamCaptureStatusNone);

  CUDA_OK(cudaStreamBeginCapture(origin, cudaStreamCaptureModeGlobal));
  CUDA_OK(cudaEventRecord(begin, origin));
  CUDA_OK(cudaStreamWaitEvent(fork, begin, 0));
  CUDA_OK(cudaMemsetAsync(device.data, 1, 64, fork));
  cudaGraph_t graph = nullptr;
  CUDA_ERROR(cudaStreamEndCapture(origin, &graph), cudaErrorStreamCaptureUnjoined);
  EXPECT_EQ(graph, nullptr);
  EXPECT_EQ(status(fork), cudaStreamCaptureStatusNone);
}

TEST_F(Capture, OnlyTheOriginEndsIt) {
  TestStream origin, fork;
  TestEvent event;
  CUDA_OK(cudaStreamBeginCapture(origin, cudaStreamCaptureModeGlobal));
  CUDA_OK(cudaEventRecord(event, origin));
  CUDA_OK(cudaStreamWaitEvent(fork, event, 0));
  cudaGraph_t graph = nullptr;
  CUDA_ERROR(cudaStreamEndCapture(fork, &graph), cudaErrorStreamCaptureUnmatched);
  expect_broken(origin);
}

TEST_F(Capture, TwoSequencesDoNotMerge) {
  TestStream first, second;
  TestEvent event;
  CUDA_OK(cudaStreamBeginCapture(first, cudaStreamCaptureModeGlobal));
  CUDA_OK(cudaStreamBeginCapture(second, cudaStreamCaptureModeGlobal));
  CUDA_OK(cudaEventRecord(event, first));
  CUDA_ERROR(cudaStreamWaitEvent(second, event, 0), cudaErrorStreamCaptureMerge);
  expect_broken(first);
  expect_broken(second);
}

TEST_F(Capture, WorkOutsideCannotBeWaitedForInside) {
  TestStream capturing, outside;
  TestEvent event;
  CUDA_OK(cudaEventRecord(event, outside));
  CUDA_OK(cudaStreamBeginCapture(capturing, cudaStreamCaptureModeGlobal));
  CUDA_ERROR(cudaStreamWaitEvent(capturing, event, 0), cudaErrorStreamCaptureIsolation);
  expect_broken(capturing);
}

TEST_F(Capture, TheLegacyStreamIsUnusableWhileABlockingStreamCaptures) {
  DeviceBuffer device(64);
  TestStream blocking(cudaStreamDefault);
  CUDA_OK(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeRelaxed));
  cudaStreamCaptureStatus ignored = cudaStreamCaptureStatusNone;
  CUDA_ERROR(cudaStreamIsCapturing(nullptr, &ignored), cudaErrorStreamCaptureImplicit);
  EXPECT_EQ(status(blocking), cudaStreamCaptureStatusActive);
  CUDA_ERROR(cudaMemsetAsync(device.data, 0, 64, nullptr), cudaErrorStreamCaptureImplicit);
  expect_broken(blocking);
}

TEST_F(Capture, TheLegacyStreamIsFreeWhileANonBlockingStreamCaptures) {
  DeviceBuffer device(64);
  TestStream stream;
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  CUDA_OK(cudaMemsetAsync(device.data, 0, 64, nullptr));
  EXPECT_EQ(end(stream), 0U);
}

TEST_F(Capture, SaysItsIdGraphAndDependencies) {
  DeviceBuffer device(64);
  TestStream stream;
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  CUDA_OK(cudaMemsetAsync(device.data, 1, 64, stream));
  cudaStreamCaptureStatus state = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  cudaGraph_t graph = nullptr;
  const cudaGraphNode_t* after = nullptr;
  std::size_t count = 0;
  CUDA_OK(cudaStreamGetCaptureInfo(stream, &state, &id, &graph, &after, nullptr, &count));
  EXPECT_EQ(state, cudaStreamCaptureStatusActive);
  EXPECT_NE(id, 0U);
  ASSERT_EQ(count, 1U);
  cudaGraphNode_t node = nullptr;
  std::size_t one = 1;
  CUDA_OK(cudaGraphGetNodes(graph, &node, &one));
  EXPECT_EQ(after[0], node);
  cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
  CUDA_OK(cudaGraphNodeGetType(node, &type));
  EXPECT_EQ(type, cudaGraphNodeTypeMemset);
  CUDA_OK(cudaStreamUpdateCaptureDependencies(stream, nullptr, nullptr, 0,
                                              cudaStreamSetCaptureDependencies));
  CUDA_OK(cudaStreamGetCaptureInfo(stream, &state, nullptr, nullptr, &after, nullptr, &count));
  EXPECT_EQ(count, 0U);
  EXPECT_EQ(end(stream), 1U);
}

}  // namespace
}  // namespace staging::sim
