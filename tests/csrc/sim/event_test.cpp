// Events, against the documentation of cudaEvent*.
#include "sim/sim_test.h"

namespace staging::sim {
namespace {

class Event : public SimTest {};

TEST_F(Event, BeforeItsFirstRecordAnEventIsComplete) {
  TestEvent event;
  CUDA_OK(cudaEventQuery(event));
  CUDA_OK(cudaEventSynchronize(event));
  TestStream stream;
  CUDA_OK(cudaStreamWaitEvent(stream, event, 0));
}

TEST_F(Event, CapturesWhatTheStreamHadAtTheRecord) {
  use("lazy");
  Pinned host(64, 1);
  DeviceBuffer device(64);
  TestStream stream;
  TestEvent event;
  CUDA_OK(cudaMemcpyAsync(device.data, host.data, 64, cudaMemcpyHostToDevice, stream));
  CUDA_OK(cudaEventRecord(event, stream));
  CUDA_OK(cudaMemcpyAsync(device.data, host.data, 64, cudaMemcpyHostToDevice, stream));
  CUDA_ERROR(cudaEventQuery(event), cudaErrorNotReady);
  // An answer, not an error (programming guide, "Error Checking").
  CUDA_OK(cudaGetLastError());
  CUDA_OK(cudaEventSynchronize(event));
  EXPECT_EQ(staging_sim_pending(), 1U);
  CUDA_OK(cudaEventQuery(event));
}

TEST_F(Event, ALaterRecordReplacesTheEarlierOneButNotForThoseWhoWait) {
  use("lazy");
  Pinned host(64, 1);
  DeviceBuffer device(64);
  TestStream first, second, waiting;
  TestEvent event;
  CUDA_OK(cudaEventRecord(event, first));
  CUDA_OK(cudaStreamWaitEvent(waiting, event, 0));
  CUDA_OK(cudaMemcpyAsync(device.data, host.data, 64, cudaMemcpyHostToDevice, second));
  CUDA_OK(cudaEventRecord(event, second));
  CUDA_OK(cudaStreamSynchronize(waiting));
  CUDA_ERROR(cudaEventQuery(event), cudaErrorNotReady);
}

TEST_F(Event, MayBeDestroyedWhileItIsPending) {
  use("lazy");
  Pinned host(64, 4);
  DeviceBuffer device(64);
  TestStream first, second;
  {
    TestEvent event(cudaEventDefault);
    CUDA_OK(cudaMemcpyAsync(device.data, host.data, 64, cudaMemcpyHostToDevice, first));
    CUDA_OK(cudaEventRecord(event, first));
    CUDA_OK(cudaStreamWaitEvent(second, event, 0));
  }
  CUDA_OK(cudaStreamSynchronize(second));
  EXPECT_TRUE(device.holds(4));
}

TEST_F(Event, AHandleThatWasDestroyedIsRecognised) {
  cudaEvent_t event = nullptr;
  CUDA_OK(cudaEventCreate(&event));
  CUDA_OK(cudaEventDestroy(event));
  CUDA_ERROR(cudaEventQuery(event), cudaErrorInvalidResourceHandle);
  CUDA_ERROR(cudaEventDestroy(event), cudaErrorInvalidResourceHandle);
  CUDA_ERROR(cudaEventRecord(event, nullptr), cudaErrorInvalidResourceHandle);
  CUDA_ERROR(cudaEventQuery(nullptr), cudaErrorInvalidResourceHandle);
}

TEST_F(Event, WhatNeverWasAHandleIsRecognised) {
  TestStream stream;
  int local = 0;
  for (void* const value : {static_cast<void*>(&local), reinterpret_cast<void*>(0x1234567800),
                            static_cast<void*>(stream.handle)}) {
    CUDA_ERROR(cudaEventQuery(static_cast<cudaEvent_t>(value)), cudaErrorInvalidResourceHandle);
  }
  TestEvent event;
  CUDA_ERROR(cudaStreamSynchronize(reinterpret_cast<cudaStream_t>(event.handle)),
             cudaErrorInvalidResourceHandle);
}

TEST_F(Event, MeasuresTimeUnlessToldNotTo) {
  TestEvent start(cudaEventDefault), end(cudaEventDefault), untimed;
  TestStream stream;
  float ms = -1;
  CUDA_ERROR(cudaEventElapsedTime(&ms, start, end), cudaErrorInvalidResourceHandle);
  CUDA_OK(cudaEventRecord(start, stream));
  CUDA_OK(cudaEventRecord(end, stream));
  CUDA_OK(cudaEventRecord(untimed, stream));
  CUDA_OK(cudaEventElapsedTime(&ms, start, end));
  EXPECT_GE(ms, 0.0F);
  CUDA_ERROR(cudaEventElapsedTime(&ms, start, untimed), cudaErrorInvalidResourceHandle);
}

TEST_F(Event, TimeIsNotReadyBeforeBothAreComplete) {
  use("lazy");
  TestEvent start(cudaEventDefault), end(cudaEventDefault);
  TestStream stream;
  CUDA_OK(cudaEventRecord(start, stream));
  CUDA_OK(cudaEventRecord(end, stream));
  float ms = 0;
  CUDA_ERROR(cudaEventElapsedTime(&ms, start, end), cudaErrorNotReady);
  CUDA_OK(cudaEventSynchronize(end));
  CUDA_OK(cudaEventElapsedTime(&ms, start, end));
}

TEST_F(Event, UnknownFlagsAreRefused) {
  cudaEvent_t event = nullptr;
  CUDA_ERROR(cudaEventCreateWithFlags(&event, 0x80), cudaErrorInvalidValue);
  CUDA_ERROR(cudaEventCreateWithFlags(&event, cudaEventInterprocess), cudaErrorInvalidValue);
  CUDA_ERROR(cudaEventCreate(nullptr), cudaErrorInvalidValue);
}

TEST_F(Event, AnExternalRecordOutsideOfACaptureIsRefused) {
  TestEvent event;
  TestStream stream;
  CUDA_ERROR(cudaEventRecordWithFlags(event, stream, cudaEventRecordExternal),
             cudaErrorInvalidValue);
  CUDA_OK(cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault));
}

TEST_F(Event, HandlesAreCountedForLeakTests) {
  struct staging_sim_objects before = {}, during = {}, after = {};
  staging_sim_objects(&before);
  {
    TestEvent a, b;
    TestStream stream;
    staging_sim_objects(&during);
  }
  staging_sim_objects(&after);
  EXPECT_EQ(during.events, before.events + 2);
  EXPECT_EQ(during.streams, before.streams + 1);
  EXPECT_EQ(after.events, before.events);
  EXPECT_EQ(after.streams, before.streams);
}

}  // namespace
}  // namespace staging::sim
