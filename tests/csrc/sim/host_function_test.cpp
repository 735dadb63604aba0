// Host functions, against the documentation of cudaLaunchHostFunc.
#include "sim/sim_test.h"

#include <atomic>
#include <thread>

namespace staging::sim {
namespace {

class HostFunction : public SimTest {};
class HostFunctionAlways : public EverySchedule {};
INSTANTIATE_TEST_SUITE_P(All, HostFunctionAlways, STAGING_SIM_SCHEDULES, schedule_name);

// Lets a test keep a host function from returning.
struct Gate {
  std::atomic<bool> entered{false}, open{false};
  static void wait(void* self) {
    auto* const gate = static_cast<Gate*>(self);
    gate->entered = true;
    while (!gate->open) std::this_thread::yield();
  }
};

TEST_P(HostFunctionAlways, RunsAfterWhatIsBeforeIt) {
  Pinned host(64, 1), back(64, 0);
  DeviceBuffer device(64);
  TestStream stream;
  struct Seen {
    const unsigned char* bytes;
    int value;
  } seen{back.data, -1};
  CUDA_OK(cudaMemcpyAsync(device.data, host.data, 64, cudaMemcpyHostToDevice, stream));
  CUDA_OK(cudaMemcpyAsync(back.data, device.data, 64, cudaMemcpyDeviceToHost, stream));
  CUDA_OK(cudaLaunchHostFunc(
      stream,
      [](void* argument) {
        auto* const what = static_cast<Seen*>(argument);
        what->value = what->bytes[63];
      },
      &seen));
  CUDA_OK(cudaStreamSynchronize(stream));
  EXPECT_EQ(seen.value, 1);
}

TEST_P(HostFunctionAlways, RunsBeforeWhatIsAfterIt) {
  Pinned host(64, 1);
  DeviceBuffer device(64);
  TestStream stream;
  CUDA_OK(cudaLaunchHostFunc(stream, [](void* bytes) { std::memset(bytes, 2, 64); }, host.data));
  CUDA_OK(cudaMemcpyAsync(device.data, host.data, 64, cudaMemcpyHostToDevice, stream));
  EXPECT_TRUE(device.holds(2));
}

TEST_P(HostFunctionAlways, OneThatBlocksDoesNotBlockTheEnqueuingThreadOrOtherStreams) {
  Pinned host(64, 1);
  DeviceBuffer a(64), b(64);
  TestStream blocked, free;
  TestEvent event;
  Gate gate;
  CUDA_OK(cudaLaunchHostFunc(blocked, &Gate::wait, &gate));
  CUDA_OK(cudaMemcpyAsync(a.data, host.data, 64, cudaMemcpyHostToDevice, blocked));
  CUDA_OK(cudaEventRecord(event, blocked));
  CUDA_OK(cudaMemcpyAsync(b.data, host.data, 64, cudaMemcpyHostToDevice, free));
  CUDA_OK(cudaStreamSynchronize(free));
  CUDA_ERROR(cudaEventQuery(event), cudaErrorNotReady);
  gate.open = true;
  CUDA_OK(cudaEventSynchronize(event));
  EXPECT_TRUE(gate.entered);
}

TEST_F(HostFunction, MustNotCallTheRuntime) {
  TestStream stream;
  cudaError_t result = cudaSuccess;
  CUDA_OK(cudaLaunchHostFunc(
      stream,
      [](void* out) {
        void* pointer = nullptr;
        *static_cast<cudaError_t*>(out) = cudaMalloc(&pointer, 64);
      },
      &result));
  CUDA_OK(cudaStreamSynchronize(stream));
  CUDA_ERROR(result, cudaErrorNotPermitted);
  EXPECT_EQ(report_kinds(), std::vector<std::string>{"call-in-callback"});
}

TEST_F(HostFunction, IsNotCalledAfterAnError) {
  use("lazy");
  Pinned host(64);
  DeviceBuffer device(64);
  TestStream stream;
  bool called = false;
  staging_sim_fault_add("cudaMemcpyAsync", 1, cudaErrorIllegalAddress, 1, 1);
  CUDA_OK(cudaMemcpyAsync(device.data, host.data, 64, cudaMemcpyHostToDevice, stream));
  CUDA_OK(
      cudaLaunchHostFunc(stream, [](void* flag) { *static_cast<bool*>(flag) = true; }, &called));
  CUDA_ERROR(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
  staging_sim_run_all();
  EXPECT_FALSE(called);
  staging_sim_recover();
}

TEST_F(HostFunction, StreamCallbacksAreCalledAfterAnErrorAndToldOfIt) {
  use("lazy");
  Pinned host(64);
  DeviceBuffer device(64);
  TestStream stream;
  cudaError_t seen = cudaSuccess;
  staging_sim_fault_add("cudaMemcpyAsync", 1, cudaErrorIllegalAddress, 1, 1);
  CUDA_OK(cudaMemcpyAsync(device.data, host.data, 64, cudaMemcpyHostToDevice, stream));
  CUDA_OK(cudaStreamAddCallback(
      stream,
      [](cudaStream_t, cudaError_t status, void* out) { *static_cast<cudaError_t*>(out) = status; },
      &seen, 0));
  CUDA_ERROR(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
  staging_sim_run_all();
  CUDA_ERROR(seen, cudaErrorIllegalAddress);
  staging_sim_recover();
}

TEST_F(HostFunction, StreamCallbacksGetTheirStream) {
  TestStream stream;
  cudaStream_t seen = nullptr;
  CUDA_OK(cudaStreamAddCallback(
      stream,
      [](cudaStream_t which, cudaError_t status, void* out) {
        if (status == cudaSuccess) *static_cast<cudaStream_t*>(out) = which;
      },
      &seen, 0));
  CUDA_OK(cudaStreamSynchronize(stream));
  EXPECT_EQ(seen, stream.handle);
}

}  // namespace
}  // namespace staging::sim
