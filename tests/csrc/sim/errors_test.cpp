// Error codes: names, texts, and the last error.
#include "sim/sim_test.h"

#include <dlfcn.h>

#include <thread>

namespace staging::sim {
namespace {

class Errors : public SimTest {};

TEST_F(Errors, EveryCodeHasItsName) {
  EXPECT_STREQ(cudaGetErrorName(cudaSuccess), "cudaSuccess");
  EXPECT_STREQ(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation");
  EXPECT_STREQ(cudaGetErrorName(cudaErrorStreamCaptureImplicit), "cudaErrorStreamCaptureImplicit");
  EXPECT_STREQ(cudaGetErrorName(cudaErrorUnknown), "cudaErrorUnknown");
  EXPECT_STREQ(cudaGetErrorName(static_cast<cudaError_t>(12345)), "unrecognized error code");
  EXPECT_STREQ(cudaGetErrorString(cudaErrorInvalidValue), "invalid argument");
  EXPECT_STREQ(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory");
}

TEST_F(Errors, TheLastOneIsTheThreadsAndIsClearedByAsking) {
  CUDA_ERROR(cudaSetDevice(99), cudaErrorInvalidDevice);
  std::thread([] { CUDA_OK(cudaPeekAtLastError()); }).join();
  CUDA_ERROR(cudaPeekAtLastError(), cudaErrorInvalidDevice);
  CUDA_ERROR(cudaGetLastError(), cudaErrorInvalidDevice);
  CUDA_OK(cudaGetLastError());
}

TEST_F(Errors, ASuccessfulCallDoesNotClearIt) {
  CUDA_ERROR(cudaSetDevice(99), cudaErrorInvalidDevice);
  int device = 0;
  CUDA_OK(cudaGetDevice(&device));
  CUDA_ERROR(cudaGetLastError(), cudaErrorInvalidDevice);
}

TEST_F(Errors, AnEntryPointThatIsNotModelledIsNotSupportedAndReportedByName) {
  void* pointer = nullptr;
  CUDA_ERROR(cudaMallocManaged(&pointer, 64, cudaMemAttachGlobal), cudaErrorNotSupported);
  CUDA_ERROR(cudaMallocManaged(&pointer, 64, cudaMemAttachGlobal), cudaErrorNotSupported);
  EXPECT_NE(std::strstr(cudaGetErrorString(cudaErrorNotSupported), "cudaMallocManaged"), nullptr);
  EXPECT_EQ(report_kinds(), std::vector<std::string>{"unmodelled-call"});  // once
  // An error like any other: the thread's last one, and not sticky.
  CUDA_ERROR(cudaGetLastError(), cudaErrorNotSupported);
  CUDA_OK(cudaGetLastError());
  CUDA_OK(cudaDeviceSynchronize());
  // Cleared, it is reported again.
  staging_sim_report_clear();
  CUDA_ERROR(cudaMallocManaged(&pointer, 64, cudaMemAttachGlobal), cudaErrorNotSupported);
  EXPECT_EQ(report_kinds().size(), 1U);
}

TEST_F(Errors, NoEntryPointOfTheRuntimeEndsTheProcess) {
  // Of every family, some; their stubs are generated from one template.
  for (const char* name :
       {"cudaIpcGetMemHandle", "cudaGraphAddKernelNode", "cudaLaunchCooperativeKernel",
        "cudaMalloc3D", "cudaGetSymbolAddress", "cudaStreamSetAttribute", "cudaDeviceReset"}) {
    auto* const call = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, name));
    ASSERT_NE(call, nullptr) << name;
    EXPECT_EQ(call(), cudaErrorNotSupported) << name;
    EXPECT_NE(std::strstr(cudaGetErrorString(cudaErrorNotSupported), name), nullptr);
  }
  EXPECT_EQ(report_kinds().size(), 7U);
  const cudaChannelFormatDesc format =
      cudaCreateChannelDesc(8, 0, 0, 0, cudaChannelFormatKindSigned);
  EXPECT_EQ(format.x, 8);
}

}  // namespace
}  // namespace staging::sim
