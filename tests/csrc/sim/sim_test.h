// What the tests of the simulated device have in common.
//
// Purpose: each test chooses a schedule and leaves none of its faults, reports or pending
//   work behind. Nothing runs on its own (no progress thread) unless a test asks for it.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "sim/control.h"

// Compares with cudaSuccess and names the error.
#define CUDA_OK(call) \
  EXPECT_EQ(call, cudaSuccess) << #call << ": " << cudaGetErrorString(cudaPeekAtLastError())
#define CUDA_ERROR(call, error) EXPECT_EQ(call, error) << #call

namespace staging::sim {

class SimTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(staging_sim_set_policy("eager", 0), 0);
    staging_sim_set_progress_ms(0);
    staging_sim_report_clear();
    CUDA_OK(cudaSetDevice(0));
    static_cast<void>(cudaGetLastError());
  }
  void TearDown() override {
    staging_sim_fault_clear();
    staging_sim_recover();
    staging_sim_run_all();
    if (!expects_reports_) {
      for (const std::string& kind : report_kinds()) ADD_FAILURE() << "unexpected: " << kind;
    }
    static_cast<void>(cudaGetLastError());
  }

  static void use(const char* policy, std::uint64_t seed = 0) {
    ASSERT_EQ(staging_sim_set_policy(policy, seed), 0);
  }

  std::vector<std::string> report_kinds() {
    expects_reports_ = true;
    std::vector<std::string> kinds;
    char kind[64], message[1024];
    for (size_t i = 0; i < staging_sim_report_count(); ++i) {
      staging_sim_report(i, kind, sizeof kind, message, sizeof message);
      kinds.emplace_back(kind);
    }
    return kinds;
  }

  static std::uint64_t calls(const char* name) {
    std::vector<std::uint64_t> counts(static_cast<std::size_t>(staging_sim_call_count()));
    staging_sim_counters(counts.data());
    for (int i = 0; i < staging_sim_call_count(); ++i) {
      if (std::strcmp(staging_sim_call_name(i), name) == 0) {
        return counts[static_cast<std::size_t>(i)];
      }
    }
    ADD_FAILURE() << "no entry point " << name;
    return 0;
  }

 private:
  bool expects_reports_ = false;
};

// The schedules that every program must survive.
class EverySchedule : public SimTest,
                      public testing::WithParamInterface<std::pair<const char*, std::uint64_t>> {
 protected:
  void SetUp() override {
    SimTest::SetUp();
    use(GetParam().first, GetParam().second);
  }
};

inline std::string schedule_name(
    const testing::TestParamInfo<std::pair<const char*, std::uint64_t>>& info) {
  return std::string(info.param.first) + std::to_string(info.param.second);
}

#define STAGING_SIM_SCHEDULES                                         \
  testing::Values(std::pair<const char*, std::uint64_t>{"eager", 0},  \
                  std::pair<const char*, std::uint64_t>{"lazy", 0},   \
                  std::pair<const char*, std::uint64_t>{"random", 1}, \
                  std::pair<const char*, std::uint64_t>{"random", 2}, \
                  std::pair<const char*, std::uint64_t>{"random", 3}, \
                  std::pair<const char*, std::uint64_t>{"threads", 1})

// -- owners; of memory, they wait for what is in flight
// -------------------------------------------------------------------------------

struct TestStream {
  explicit TestStream(unsigned flags = cudaStreamNonBlocking) {
    CUDA_OK(cudaStreamCreateWithFlags(&handle, flags));
  }
  TestStream(const TestStream&) = delete;  // owns a handle
  TestStream& operator=(const TestStream&) = delete;
  ~TestStream() { static_cast<void>(cudaStreamDestroy(handle)); }
  operator cudaStream_t() const { return handle; }  // NOLINT: reads like CUDA
  cudaStream_t handle = nullptr;
};

struct TestEvent {
  explicit TestEvent(unsigned flags = cudaEventDisableTiming) {
    CUDA_OK(cudaEventCreateWithFlags(&handle, flags));
  }
  TestEvent(const TestEvent&) = delete;  // owns a handle
  TestEvent& operator=(const TestEvent&) = delete;
  ~TestEvent() { static_cast<void>(cudaEventDestroy(handle)); }
  operator cudaEvent_t() const { return handle; }  // NOLINT: reads like CUDA
  cudaEvent_t handle = nullptr;
};

struct Pinned {
  explicit Pinned(std::size_t nbytes, int value = 0) : nbytes(nbytes) {
    void* pointer = nullptr;
    CUDA_OK(cudaHostAlloc(&pointer, nbytes, cudaHostAllocDefault));
    data = static_cast<unsigned char*>(pointer);
    std::memset(data, value, nbytes);
  }
  Pinned(const Pinned&) = delete;  // owns memory
  Pinned& operator=(const Pinned&) = delete;
  ~Pinned() {
    staging_sim_run_all();
    static_cast<void>(cudaFreeHost(data));
  }
  std::size_t nbytes;
  unsigned char* data = nullptr;
};

struct DeviceBuffer {
  explicit DeviceBuffer(std::size_t nbytes) : nbytes(nbytes) {
    void* pointer = nullptr;
    CUDA_OK(cudaMalloc(&pointer, nbytes));
    data = static_cast<unsigned char*>(pointer);
  }
  DeviceBuffer(const DeviceBuffer&) = delete;  // owns memory
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  ~DeviceBuffer() {
    staging_sim_run_all();
    static_cast<void>(cudaFree(data));
  }

  // Waits for the device and reads it.
  std::vector<unsigned char> read() const {
    CUDA_OK(cudaDeviceSynchronize());
    std::vector<unsigned char> bytes(nbytes);
    CUDA_OK(cudaMemcpy(bytes.data(), data, nbytes, cudaMemcpyDeviceToHost));
    return bytes;
  }
  bool holds(int value) const {
    return read() == std::vector<unsigned char>(nbytes, static_cast<unsigned char>(value));
  }

  std::size_t nbytes;
  unsigned char* data = nullptr;
};

}  // namespace staging::sim
