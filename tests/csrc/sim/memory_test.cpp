// Device, pinned and registered memory: who may touch it, and what happens when it goes.
#include "sim/sim_test.h"

#include <sys/mman.h>

#include <set>

namespace staging::sim {
namespace {

class Memory : public SimTest {};

constexpr std::size_t kCapacity = 64 << 20;

TEST_F(Memory, TheHostCannotReadDeviceMemory) {
  EXPECT_DEATH(
      {
        void* pointer = nullptr;
        cudaMalloc(&pointer, 64);
        cudaMemset(pointer, 1, 64);
        volatile unsigned char seen = *static_cast<volatile unsigned char*>(pointer);
        static_cast<void>(seen);
      },
      "");
}

TEST_F(Memory, TheHostCannotWriteDeviceMemory) {
  EXPECT_DEATH(
      {
        void* pointer = nullptr;
        cudaMalloc(&pointer, 64);
        *static_cast<volatile unsigned char*>(pointer) = 1;
      },
      "");
}

TEST_F(Memory, TheHostCannotTouchFreedPinnedMemory) {
  EXPECT_DEATH(
      {
        void* pointer = nullptr;
        cudaHostAlloc(&pointer, 64, cudaHostAllocDefault);
        cudaFreeHost(pointer);
        *static_cast<volatile unsigned char*>(pointer) = 1;
      },
      "");
}

TEST_F(Memory, FreedAddressesAreNotHandedOutAgainAtOnce) {
  std::set<void*> seen;
  for (int i = 0; i < 100; ++i) {
    void* device = nullptr;
    void* host = nullptr;
    CUDA_OK(cudaMalloc(&device, 4096));
    CUDA_OK(cudaHostAlloc(&host, 4096, cudaHostAllocDefault));
    EXPECT_TRUE(seen.insert(device).second);
    EXPECT_TRUE(seen.insert(host).second);
    CUDA_OK(cudaFree(device));
    CUDA_OK(cudaFreeHost(host));
  }
}

TEST_F(Memory, ACopyThatUsesFreedMemoryFailsAndIsReported) {
  Pinned host(64);
  void* device = nullptr;
  CUDA_OK(cudaMalloc(&device, 64));
  CUDA_OK(cudaFree(device));
  CUDA_ERROR(cudaMemcpyAsync(device, host.data, 64, cudaMemcpyHostToDevice, nullptr),
             cudaErrorInvalidValue);
  EXPECT_EQ(report_kinds(), std::vector<std::string>{"use-after-free"});
}

TEST_F(Memory, FreeingDeviceMemoryInFlightIsReportedAndWaits) {
  use("lazy");
  Pinned host(64, 1);
  void* device = nullptr;
  CUDA_OK(cudaMalloc(&device, 64));
  CUDA_OK(cudaMemcpyAsync(device, host.data, 64, cudaMemcpyHostToDevice, nullptr));
  CUDA_OK(cudaFree(device));
  EXPECT_EQ(staging_sim_pending(), 0U);
  EXPECT_EQ(report_kinds(), std::vector<std::string>{"free-in-flight"});
}

TEST_F(Memory, FreeingPinnedMemoryInFlightIsReportedAndWaits) {
  use("lazy");
  DeviceBuffer device(64);
  void* host = nullptr;
  CUDA_OK(cudaHostAlloc(&host, 64, cudaHostAllocDefault));
  std::memset(host, 6, 64);
  CUDA_OK(cudaMemcpyAsync(device.data, host, 64, cudaMemcpyHostToDevice, nullptr));
  CUDA_OK(cudaFreeHost(host));
  EXPECT_EQ(report_kinds(), std::vector<std::string>{"free-in-flight"});
  EXPECT_TRUE(device.holds(6));
}

TEST_F(Memory, UnregisteringInFlightIsReportedAndWaits) {
  use("lazy");
  DeviceBuffer device(64);
  std::vector<unsigned char> host(64, 6);
  CUDA_OK(cudaHostRegister(host.data(), 64, cudaHostRegisterDefault));
  CUDA_OK(cudaMemcpyAsync(device.data, host.data(), 64, cudaMemcpyHostToDevice, nullptr));
  CUDA_OK(cudaHostUnregister(host.data()));
  EXPECT_EQ(report_kinds(), std::vector<std::string>{"free-in-flight"});
}

TEST_F(Memory, FreeingWhatIsNotInFlightDoesNotWait) {
  use("lazy");
  Pinned host(64, 1);
  DeviceBuffer device(64);
  void* other = nullptr;
  CUDA_OK(cudaMalloc(&other, 64));
  CUDA_OK(cudaMemcpyAsync(device.data, host.data, 64, cudaMemcpyHostToDevice, nullptr));
  CUDA_OK(cudaFree(other));
  EXPECT_EQ(staging_sim_pending(), 1U);
}

TEST_F(Memory, RunsOutAtItsCapacity) {
  std::size_t free_nbytes = 0, total = 0;
  CUDA_OK(cudaMemGetInfo(&free_nbytes, &total));
  EXPECT_EQ(total, kCapacity);
  void* all = nullptr;
  CUDA_OK(cudaMalloc(&all, free_nbytes));
  void* more = &more;
  CUDA_ERROR(cudaMalloc(&more, 1), cudaErrorMemoryAllocation);
  EXPECT_EQ(more, nullptr);
  // Not sticky: the next call is fine, once the error has been looked at.
  CUDA_ERROR(cudaGetLastError(), cudaErrorMemoryAllocation);
  CUDA_OK(cudaGetLastError());
  CUDA_OK(cudaFree(all));
  CUDA_OK(cudaMalloc(&more, 1));
  CUDA_OK(cudaFree(more));
  CUDA_ERROR(cudaMalloc(&more, SIZE_MAX), cudaErrorMemoryAllocation);
}

TEST_F(Memory, EachDeviceHasItsOwn) {
  std::size_t before = 0, after = 0, total = 0;
  CUDA_OK(cudaSetDevice(1));
  CUDA_OK(cudaMemGetInfo(&before, &total));
  CUDA_OK(cudaSetDevice(0));
  DeviceBuffer device(1 << 20);
  CUDA_OK(cudaSetDevice(1));
  CUDA_OK(cudaMemGetInfo(&after, &total));
  EXPECT_EQ(before, after);
  cudaPointerAttributes attributes = {};
  CUDA_OK(cudaPointerGetAttributes(&attributes, device.data));
  EXPECT_EQ(attributes.device, 0);
}

TEST_F(Memory, NothingIsAllocatedWhereNothingIsAskedFor) {
  void* pointer = &pointer;
  CUDA_OK(cudaMalloc(&pointer, 0));
  EXPECT_EQ(pointer, nullptr);
  CUDA_OK(cudaFree(nullptr));
  CUDA_OK(cudaFreeHost(nullptr));
}

TEST_F(Memory, OnlyTheStartOfAnAllocationIsFreed) {
  DeviceBuffer device(64);
  Pinned host(64);
  CUDA_ERROR(cudaFree(device.data + 1), cudaErrorInvalidValue);
  CUDA_ERROR(cudaFreeHost(host.data + 1), cudaErrorInvalidValue);
  CUDA_ERROR(cudaFree(host.data), cudaErrorInvalidValue);
  CUDA_ERROR(cudaFreeHost(device.data), cudaErrorInvalidValue);
}

TEST_F(Memory, MorePinnedMemoryThanTheMachineHasIsRefused) {
  void* pointer = &pointer;
  CUDA_ERROR(cudaHostAlloc(&pointer, std::size_t{1} << 50, cudaHostAllocDefault),
             cudaErrorMemoryAllocation);
  EXPECT_EQ(pointer, nullptr);
}

TEST_F(Memory, PointersSayWhatTheyAre) {
  DeviceBuffer device(64);
  Pinned host(64);
  std::vector<unsigned char> pageable(64), registered(64);
  CUDA_OK(cudaHostRegister(registered.data(), 64, cudaHostRegisterDefault));
  cudaPointerAttributes attributes = {};
  CUDA_OK(cudaPointerGetAttributes(&attributes, device.data + 63));
  EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);
  EXPECT_EQ(attributes.devicePointer, device.data + 63);
  EXPECT_EQ(attributes.hostPointer, nullptr);
  for (const unsigned char* pointer : {host.data + 5, registered.data() + 5}) {
    CUDA_OK(cudaPointerGetAttributes(&attributes, pointer));
    EXPECT_EQ(attributes.type, cudaMemoryTypeHost);
    EXPECT_EQ(attributes.devicePointer, pointer);
    EXPECT_EQ(attributes.hostPointer, pointer);
  }
  CUDA_OK(cudaPointerGetAttributes(&attributes, pageable.data()));
  EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);
  EXPECT_EQ(attributes.devicePointer, nullptr);
  CUDA_OK(cudaHostUnregister(registered.data()));
  CUDA_OK(cudaPointerGetAttributes(&attributes, registered.data()));
  EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);
}

TEST_F(Memory, RegistrationFollowsCudasRules) {
  std::vector<unsigned char> host(8192);
  CUDA_ERROR(cudaHostRegister(host.data(), 0, cudaHostRegisterDefault), cudaErrorInvalidValue);
  CUDA_ERROR(cudaHostRegister(nullptr, 64, cudaHostRegisterDefault), cudaErrorInvalidValue);
  CUDA_OK(cudaHostRegister(host.data(), 4096, cudaHostRegisterPortable));
  CUDA_ERROR(cudaHostRegister(host.data(), 4096, cudaHostRegisterDefault),
             cudaErrorHostMemoryAlreadyRegistered);
  CUDA_ERROR(cudaHostRegister(host.data() + 4000, 200, cudaHostRegisterDefault),
             cudaErrorHostMemoryAlreadyRegistered);
  CUDA_ERROR(cudaHostUnregister(host.data() + 1), cudaErrorHostMemoryNotRegistered);
  CUDA_OK(cudaHostUnregister(host.data()));
  CUDA_ERROR(cudaHostUnregister(host.data()), cudaErrorHostMemoryNotRegistered);
  Pinned pinned(64);
  CUDA_ERROR(cudaHostRegister(pinned.data, 64, cudaHostRegisterDefault),
             cudaErrorHostMemoryAlreadyRegistered);
}

TEST_F(Memory, WhatIsNotMappedCannotBeRegistered) {
  void* const pages =
      mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  ASSERT_EQ(munmap(static_cast<char*>(pages) + 4096, 4096), 0);
  CUDA_ERROR(cudaHostRegister(pages, 8192, cudaHostRegisterDefault), cudaErrorInvalidValue);
  CUDA_OK(cudaHostRegister(pages, 4096, cudaHostRegisterDefault));
  CUDA_OK(cudaHostUnregister(pages));
  munmap(pages, 4096);
}

TEST_F(Memory, ReadOnlyRegistrationIsNotSupportedByThisDevice) {
  std::vector<unsigned char> host(64);
  int supported = 1;
  CUDA_OK(cudaDeviceGetAttribute(&supported, cudaDevAttrHostRegisterReadOnlySupported, 0));
  EXPECT_EQ(supported, 0);
  CUDA_ERROR(cudaHostRegister(host.data(), 64, cudaHostRegisterReadOnly), cudaErrorNotSupported);
  EXPECT_STREQ(cudaGetErrorString(cudaErrorNotSupported), "operation not supported");
}

TEST_F(Memory, TheDeviceSeesPinnedMemoryAtItsOwnAddress) {
  Pinned host(64);
  void* device = nullptr;
  CUDA_OK(cudaHostGetDevicePointer(&device, host.data, 0));
  EXPECT_EQ(device, host.data);
  std::vector<unsigned char> pageable(64);
  CUDA_ERROR(cudaHostGetDevicePointer(&device, pageable.data(), 0), cudaErrorInvalidValue);
}

// The pages' protection is the host's alone: DMA does not see it.
TEST_F(Memory, CopiesReachProtectedPinnedPages) {
  Pinned host(4096, 1);
  DeviceBuffer device(4096);
  CUDA_OK(cudaMemset(device.data, 2, 4096));
  ASSERT_EQ(mprotect(host.data, 4096, PROT_NONE), 0);
  CUDA_OK(cudaMemcpy(host.data, device.data, 4096, cudaMemcpyDeviceToHost));
  ASSERT_EQ(mprotect(host.data, 4096, PROT_READ), 0);
  EXPECT_EQ(host.data[4095], 2);
}

TEST_F(Memory, CopiesReachProtectedRegisteredPages) {
  void* const pages =
      mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  auto* const bytes = static_cast<unsigned char*>(pages);
  std::memset(bytes, 1, 8192);
  CUDA_OK(cudaHostRegister(bytes, 8192, cudaHostRegisterDefault));
  DeviceBuffer device(8192);
  CUDA_OK(cudaMemset(device.data, 2, 8192));
  ASSERT_EQ(mprotect(bytes, 4096, PROT_NONE), 0);
  CUDA_OK(cudaMemcpy(bytes, device.data, 8192, cudaMemcpyDeviceToHost));
  CUDA_OK(cudaMemcpy(device.data, bytes, 8192, cudaMemcpyHostToDevice));
  ASSERT_EQ(mprotect(bytes, 4096, PROT_READ | PROT_WRITE), 0);
  EXPECT_EQ(bytes[0], 2);
  EXPECT_EQ(bytes[8191], 2);
  EXPECT_TRUE(device.holds(2));
  // Read-only pages are readable for the device as for the host.
  ASSERT_EQ(mprotect(bytes, 8192, PROT_READ), 0);
  CUDA_OK(cudaMemset(device.data, 3, 8192));
  CUDA_OK(cudaMemcpy(bytes, device.data, 8192, cudaMemcpyDeviceToHost));
  EXPECT_EQ(bytes[0], 3);
  CUDA_OK(cudaHostUnregister(bytes));
  munmap(pages, 8192);
}

TEST_F(Memory, StreamOrderedFreesWaitForTheStream) {
  use("lazy");
  Pinned host(64, 7), back(64, 0);
  TestStream stream;
  void* pointer = nullptr;
  CUDA_OK(cudaMallocAsync(&pointer, 64, stream));
  CUDA_OK(cudaMemcpyAsync(pointer, host.data, 64, cudaMemcpyHostToDevice, stream));
  CUDA_OK(cudaMemcpyAsync(back.data, pointer, 64, cudaMemcpyDeviceToHost, stream));
  CUDA_OK(cudaFreeAsync(pointer, stream));
  CUDA_OK(cudaStreamSynchronize(stream));
  EXPECT_EQ(back.data[63], 7);
  CUDA_ERROR(cudaFreeAsync(pointer, stream), cudaErrorInvalidValue);
}

TEST_F(Memory, IsCountedForLeakTests) {
  struct staging_sim_objects before = {}, during = {}, after = {};
  staging_sim_objects(&before);
  {
    Pinned host(100);
    DeviceBuffer device(200);
    staging_sim_objects(&during);
  }
  staging_sim_objects(&after);
  EXPECT_EQ(during.pinned_allocations, before.pinned_allocations + 1);
  EXPECT_EQ(during.pinned_nbytes, before.pinned_nbytes + 100);
  EXPECT_EQ(during.device_allocations, before.device_allocations + 1);
  EXPECT_EQ(during.device_nbytes, before.device_nbytes + 200);
  EXPECT_EQ(after.pinned_nbytes, before.pinned_nbytes);
  EXPECT_EQ(after.device_allocations, before.device_allocations);
}

}  // namespace
}  // namespace staging::sim
