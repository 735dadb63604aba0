// Devices: how many, what they are called, what belongs to which.
#include "sim/sim_test.h"

#include <sys/wait.h>
#include <unistd.h>

#include <thread>

namespace staging::sim {
namespace {

class Device : public SimTest {};

TEST_F(Device, IsCalledWhatItIs) {
  cudaDeviceProp properties = {};
  CUDA_OK(cudaGetDeviceProperties(&properties, 1));
  EXPECT_STREQ(properties.name, "Simulated device");
  int count = 0;
  CUDA_OK(cudaGetDeviceCount(&count));
  EXPECT_EQ(count, 2);
  CUDA_ERROR(cudaGetDeviceProperties(&properties, 2), cudaErrorInvalidDevice);
  CUDA_ERROR(cudaSetDevice(2), cudaErrorInvalidDevice);
  CUDA_ERROR(cudaSetDevice(-1), cudaErrorInvalidDevice);
}

TEST_F(Device, TheCurrentOneIsTheThreads) {
  CUDA_OK(cudaSetDevice(1));
  int elsewhere = -1, here = -1;
  std::thread([&] { cudaGetDevice(&elsewhere); }).join();
  CUDA_OK(cudaGetDevice(&here));
  EXPECT_EQ(elsewhere, 0);
  EXPECT_EQ(here, 1);
}

// Its own process, so that nothing was initialised before.
TEST_F(Device, AContextIsMadeByTheCallsThatMakeOneAndNotByQueries) {
  EXPECT_EXIT(
      {
        int count = 0;
        int device = 0;
        cudaDeviceProp properties = {};
        cudaPointerAttributes attributes = {};
        // The fixture made a context on device 0.
        cudaGetDeviceCount(&count);
        cudaGetDevice(&device);
        cudaGetDeviceProperties(&properties, 1);
        cudaPointerGetAttributes(&attributes, &count);
        if (staging_sim_context_active(1) != 0) std::exit(1);
        cudaSetDevice(1);
        if (staging_sim_context_active(1) != 1) std::exit(2);
        std::exit(0);
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(Device, EventsAndStreamsBelongToOne) {
  TestStream stream0;
  TestEvent event0(cudaEventDefault);
  CUDA_OK(cudaSetDevice(1));
  TestStream stream1;
  TestEvent event1(cudaEventDefault);
  // Programming guide, "Stream and Event Behavior": the record fails, the others succeed.
  CUDA_ERROR(cudaEventRecord(event0, stream1), cudaErrorInvalidResourceHandle);
  CUDA_ERROR(cudaEventRecord(event1, stream0), cudaErrorInvalidResourceHandle);
  CUDA_OK(cudaEventRecord(event0, stream0));
  CUDA_OK(cudaEventRecord(event1, stream1));
  CUDA_OK(cudaStreamWaitEvent(stream1, event0, 0));
  CUDA_OK(cudaEventQuery(event0));
  CUDA_OK(cudaEventSynchronize(event0));
  float ms = 0;
  CUDA_ERROR(cudaEventElapsedTime(&ms, event0, event1), cudaErrorInvalidResourceHandle);
  // The null stream is the current device's.
  CUDA_ERROR(cudaEventRecord(event0, nullptr), cudaErrorInvalidResourceHandle);
  int device = -1;
  CUDA_OK(cudaStreamGetDevice(stream0, &device));
  EXPECT_EQ(device, 0);
}

TEST_F(Device, CopiesGoToAnyDevicesStreamAndBetweenDevices) {
  Pinned host(64, 4);
  DeviceBuffer buffer0(64);
  TestStream stream0;
  CUDA_OK(cudaSetDevice(1));
  DeviceBuffer buffer1(64);
  CUDA_OK(cudaMemcpyAsync(buffer0.data, host.data, 64, cudaMemcpyHostToDevice, stream0));
  CUDA_OK(cudaMemcpyPeerAsync(buffer1.data, 1, buffer0.data, 0, 64, stream0));
  CUDA_OK(cudaStreamSynchronize(stream0));
  EXPECT_TRUE(buffer1.holds(4));
}

TEST_F(Device, SynchronisingOneLeavesTheOthersWorkAlone) {
  use("lazy");
  Pinned host(64, 4);
  DeviceBuffer buffer0(64);
  TestStream stream0;
  CUDA_OK(cudaSetDevice(1));
  DeviceBuffer buffer1(64);
  TestStream stream1;
  CUDA_OK(cudaMemcpyAsync(buffer0.data, host.data, 64, cudaMemcpyHostToDevice, stream0));
  CUDA_OK(cudaMemcpyAsync(buffer1.data, host.data, 64, cudaMemcpyHostToDevice, stream1));
  CUDA_OK(cudaDeviceSynchronize());
  EXPECT_EQ(staging_sim_pending(), 1U);
}

TEST_F(Device, AForkedChildHasNone) {
  Pinned host(64);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    void* pointer = nullptr;
    int device = -1;
    const bool right = cudaMalloc(&pointer, 64) == cudaErrorInitializationError &&
                       cudaDeviceSynchronize() == cudaErrorInitializationError &&
                       cudaGetDevice(&device) == cudaSuccess;
    _exit(right ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(Device, StreamsTakePriorities) {
  int least = 1, greatest = 1;
  CUDA_OK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t stream = nullptr;
  CUDA_OK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest));
  int priority = 1;
  unsigned flags = 0;
  CUDA_OK(cudaStreamGetPriority(stream, &priority));
  CUDA_OK(cudaStreamGetFlags(stream, &flags));
  EXPECT_EQ(priority, greatest);
  EXPECT_EQ(flags, static_cast<unsigned>(cudaStreamNonBlocking));
  CUDA_OK(cudaStreamDestroy(stream));
  CUDA_ERROR(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
}

TEST_F(Device, LimitsAreKept) {
  std::size_t value = 0;
  CUDA_OK(cudaDeviceSetLimit(cudaLimitPrintfFifoSize, 4096));
  CUDA_OK(cudaDeviceGetLimit(&value, cudaLimitPrintfFifoSize));
  EXPECT_EQ(value, 4096U);
  CUDA_ERROR(cudaDeviceGetLimit(&value, static_cast<cudaLimit>(99)), cudaErrorUnsupportedLimit);
  CUDA_ERROR(cudaDeviceSetLimit(static_cast<cudaLimit>(99), 1), cudaErrorUnsupportedLimit);
}

TEST_F(Device, WorkOfADestroyedStreamRunsAllTheSame) {
  use("lazy");
  Pinned host(64, 4);
  DeviceBuffer device(64);
  {
    TestStream stream;
    CUDA_OK(cudaMemcpyAsync(device.data, host.data, 64, cudaMemcpyHostToDevice, stream));
  }
  EXPECT_TRUE(device.holds(4));
}

}  // namespace
}  // namespace staging::sim
