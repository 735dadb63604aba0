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

TEST_F(Errors, AnEntryPointThatIsNotModelledEndsTheProcessByName) {
  auto* const advise = reinterpret_cast<void (*)()>(dlsym(RTLD_DEFAULT, "cudaMemAdvise"));
  ASSERT_NE(advise, nullptr);
  EXPECT_DEATH(advise(), "cudaMemAdvise is not modelled");
}

}  // namespace
}  // namespace staging::sim
