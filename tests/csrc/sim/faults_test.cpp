// Faults on demand and what they do to the context.
#include "sim/sim_test.h"

namespace staging::sim {
namespace {

class Faults : public SimTest {};

TEST_F(Faults, TheNthCallOfANameFailsOnce) {
  const int fault = staging_sim_fault_add("cudaEventCreateWithFlags", 3, 999, 0, 0);
  ASSERT_GT(fault, 0);
  TestEvent first, second;
  cudaEvent_t third = nullptr;
  CUDA_ERROR(cudaEventCreateWithFlags(&third, 0), cudaErrorUnknown);
  EXPECT_EQ(third, nullptr);
  CUDA_ERROR(cudaGetLastError(), cudaErrorUnknown);
  TestEvent fourth;
  EXPECT_EQ(staging_sim_fault_remove(fault), 1);
  EXPECT_EQ(staging_sim_fault_remove(fault), 0);
}

TEST_F(Faults, OneOfALibraryCountsTheCallsThatTheLibraryMakes) {
  const int mine = staging_sim_fault_add_in("sim_tests", "cudaMalloc", 2, 2, 0, 0);
  const int theirs = staging_sim_fault_add_in("libc10_cuda", "cudaMalloc", 1, 2, 0, 0);
  void* pointer = nullptr;
  CUDA_OK(cudaMalloc(&pointer, 64));
  CUDA_OK(cudaFree(pointer));
  CUDA_ERROR(cudaMalloc(&pointer, 64), cudaErrorMemoryAllocation);
  static_cast<void>(cudaGetLastError());
  EXPECT_EQ(staging_sim_fault_remove(mine), 1);
  EXPECT_EQ(staging_sim_fault_remove(theirs), 0);
}

TEST_F(Faults, OneThatDidNotHappenSaysSo) {
  const int fault = staging_sim_fault_add("cudaMalloc", 1, 2, 0, 0);
  EXPECT_EQ(staging_sim_fault_remove(fault), 0);
  void* pointer = nullptr;
  CUDA_OK(cudaMalloc(&pointer, 64));
  CUDA_OK(cudaFree(pointer));
}

TEST_F(Faults, NamesAndNumbersAreChecked) {
  EXPECT_EQ(staging_sim_fault_add("cudaNothing", 1, 2, 0, 0), -1);
  EXPECT_EQ(staging_sim_fault_add("cudaMalloc", 0, 2, 0, 0), -1);
  EXPECT_EQ(staging_sim_fault_add("cudaMalloc", 1, 0, 0, 0), -1);
}

TEST_F(Faults, AStickyOneFailsEveryLaterCall) {
  use("lazy");
  Pinned host(64);
  DeviceBuffer device(64);
  TestStream stream;
  TestEvent event;
  CUDA_OK(cudaMemcpyAsync(device.data, host.data, 64, cudaMemcpyHostToDevice, stream));
  CUDA_OK(cudaEventRecord(event, stream));
  staging_sim_fault_add("cudaStreamQuery", 1, cudaErrorIllegalAddress, 1, 0);
  CUDA_ERROR(cudaStreamQuery(stream), cudaErrorIllegalAddress);
  CUDA_ERROR(cudaEventQuery(event), cudaErrorIllegalAddress);
  CUDA_ERROR(cudaEventSynchronize(event), cudaErrorIllegalAddress);
  CUDA_ERROR(cudaMemcpyAsync(device.data, host.data, 64, cudaMemcpyHostToDevice, stream),
             cudaErrorIllegalAddress);
  void* pointer = nullptr;
  CUDA_ERROR(cudaMalloc(&pointer, 64), cudaErrorIllegalAddress);
  // Looking at it does not clear it.
  CUDA_ERROR(cudaGetLastError(), cudaErrorIllegalAddress);
  CUDA_ERROR(cudaGetLastError(), cudaErrorIllegalAddress);
  EXPECT_EQ(staging_sim_lost(), cudaErrorIllegalAddress);
  EXPECT_EQ(staging_sim_pending(), 0U);
  staging_sim_recover();
  static_cast<void>(cudaGetLastError());
  CUDA_OK(cudaMalloc(&pointer, 64));
  CUDA_OK(cudaFree(pointer));
}

TEST_F(Faults, ADeferredOneHappensWhenTheWorkRuns) {
  for (const char* policy : {"eager", "lazy", "random", "threads"}) {
    use(policy);
    Pinned host(64);
    DeviceBuffer device(64);
    TestStream stream;
    staging_sim_fault_add("cudaMemcpyAsync", 1, cudaErrorLaunchFailure, 1, 1);
    static_cast<void>(cudaMemcpyAsync(device.data, host.data, 64, cudaMemcpyHostToDevice, stream));
    CUDA_ERROR(cudaStreamSynchronize(stream), cudaErrorLaunchFailure) << policy;
    staging_sim_recover();
    static_cast<void>(cudaGetLastError());
  }
}

}  // namespace
}  // namespace staging::sim
