// Launches: this package's kernels, PyTorch's fill, and everything else.
#include "sim/sim_test.h"

#include <sys/mman.h>

#include <array>
#include <numeric>

#include "kernels/strided_copy.cuh"

extern "C" {
void** __cudaRegisterFatBinary(void*);
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*,
                            dim3*, int*);
void __cudaUnregisterFatBinary(void**);
}

namespace staging::sim {
namespace {

// What nvcc's host code does for each kernel when a program is loaded.
const void* register_kernel(const char* mangled) {
  static char stubs[16];
  static int next = 0;
  static void** const binary = __cudaRegisterFatBinary(nullptr);
  char* const stub = &stubs[next++];
  __cudaRegisterFunction(binary, stub, nullptr, mangled, -1, nullptr, nullptr, nullptr, nullptr,
                         nullptr);
  return stub;
}

const void* strided_copy_stub() {
  static const void* const stub =
      register_kernel("_ZN7staging7kernels19strided_copy_kernelENS0_17StridedCopyParamsE");
  return stub;
}

class Kernels : public SimTest {};
class KernelsAlways : public EverySchedule {};
INSTANTIATE_TEST_SUITE_P(All, KernelsAlways, STAGING_SIM_SCHEDULES, schedule_name);

kernels::StridedCopyParams transpose(const unsigned char* src, unsigned char* dst, int rows,
                                     int columns) {
  kernels::StridedCopyParams params{};
  params.src = src;
  params.dst = dst;
  params.element_count = std::int64_t{rows} * columns;
  params.ndim = 2;
  params.element_nbytes = 4;
  params.sizes[0] = rows;
  params.sizes[1] = columns;
  params.src_strides_nbytes[0] = 4 * columns;
  params.src_strides_nbytes[1] = 4;
  params.dst_strides_nbytes[0] = 4;
  params.dst_strides_nbytes[1] = 4 * rows;
  return params;
}

TEST_P(KernelsAlways, OfThisPackageRunTheirOwnSource) {
  constexpr int kRows = 5, kColumns = 7;
  Pinned host(4 * kRows * kColumns);
  auto* const numbers = reinterpret_cast<int*>(host.data);
  std::iota(numbers, numbers + kRows * kColumns, 0);
  DeviceBuffer device(host.nbytes);
  TestStream stream;
  // The source is pinned memory, which kernels read at its own address.
  kernels::StridedCopyParams params = transpose(host.data, device.data, kRows, kColumns);
  void* args[] = {&params};
  CUDA_OK(cudaLaunchKernel(strided_copy_stub(), dim3(2), dim3(32), args, 0, stream));
  params = {};  // arguments are copied at launch
  const std::vector<unsigned char> seen = device.read();
  for (int row = 0; row < kRows; ++row) {
    for (int column = 0; column < kColumns; ++column) {
      int value = -1;
      std::memcpy(&value, seen.data() + 4 * (column * kRows + row), 4);
      ASSERT_EQ(value, numbers[row * kColumns + column]);
    }
  }
}

TEST_F(Kernels, ReachPinnedPagesThatTheProgramProtected) {
  Pinned host(4096, 7);
  DeviceBuffer device(64);
  kernels::StridedCopyParams params = transpose(host.data, device.data, 4, 4);
  void* args[] = {&params};
  ASSERT_EQ(mprotect(host.data, 4096, PROT_NONE), 0);
  CUDA_OK(cudaLaunchKernel(strided_copy_stub(), dim3(1), dim3(32), args, 0, nullptr));
  EXPECT_TRUE(device.holds(7));
  // And the protection is back.
  EXPECT_DEATH(
      {
        Pinned other(4096, 7);
        DeviceBuffer target(64);
        kernels::StridedCopyParams again = transpose(other.data, target.data, 4, 4);
        void* arguments[] = {&again};
        mprotect(other.data, 4096, PROT_NONE);
        cudaLaunchKernel(strided_copy_stub(), dim3(1), dim3(32), arguments, 0, nullptr);
        cudaDeviceSynchronize();
        other.data[0] = 1;
      },
      "");
  ASSERT_EQ(mprotect(host.data, 4096, PROT_READ | PROT_WRITE), 0);
}

TEST_F(Kernels, TheHostStillCannotTouchDeviceMemoryAfterALaunch) {
  EXPECT_DEATH(
      {
        Pinned host(64);
        void* device = nullptr;
        cudaMalloc(&device, 64);
        kernels::StridedCopyParams params =
            transpose(host.data, static_cast<unsigned char*>(device), 4, 4);
        void* args[] = {&params};
        cudaLaunchKernel(strided_copy_stub(), dim3(1), dim3(32), args, 0, nullptr);
        cudaDeviceSynchronize();
        *static_cast<volatile unsigned char*>(device) = 1;
      },
      "");
}

TEST_F(Kernels, FreeingWhatAKernelInFlightUsesIsReported) {
  use("lazy");
  Pinned host(64);
  void* device = nullptr;
  CUDA_OK(cudaMalloc(&device, 64));
  kernels::StridedCopyParams params =
      transpose(host.data, static_cast<unsigned char*>(device), 4, 4);
  void* args[] = {&params};
  CUDA_OK(cudaLaunchKernel(strided_copy_stub(), dim3(1), dim3(32), args, 0, nullptr));
  CUDA_OK(cudaFree(device));
  EXPECT_EQ(report_kinds(), std::vector<std::string>{"free-in-flight"});
}

TEST_P(KernelsAlways, PyTorchsFillIsModelled) {
  // void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>,
  //     std::array<char*, 1ul>, false>(int, at::native::FillFunctor<float>, …)
  static const void* const stub = register_kernel(
      "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EELb0"
      "EEEviT0_T1_");
  DeviceBuffer device(4 * 33);
  CUDA_OK(cudaMemset(device.data, 0, device.nbytes));
  int n = 32;
  float value = 2.5F;
  std::array<char*, 1> data{reinterpret_cast<char*>(device.data)};
  void* args[] = {&n, &value, &data};
  CUDA_OK(cudaLaunchKernel(stub, dim3(1), dim3(128), args, 0, nullptr));
  const std::vector<unsigned char> seen = device.read();
  for (std::size_t i = 0; i < 33; ++i) {
    float element = -1;
    std::memcpy(&element, seen.data() + 4 * i, 4);
    ASSERT_EQ(element, i < 32 ? 2.5F : 0.0F) << i;
  }
}

TEST_F(Kernels, OneThatIsNotModelledFailsByName) {
  const void* const stub = register_kernel("_ZN5other13secret_kernelEi");
  int argument = 0;
  void* args[] = {&argument};
  CUDA_ERROR(cudaLaunchKernel(stub, dim3(1), dim3(32), args, 0, nullptr), cudaErrorNotSupported);
  ASSERT_EQ(report_kinds(), std::vector<std::string>{"unmodelled-kernel"});
  char kind[64], message[256];
  ASSERT_EQ(staging_sim_report(0, kind, sizeof kind, message, sizeof message), 0);
  EXPECT_STREQ(message, "other::secret_kernel(int)");
  EXPECT_NE(std::strstr(cudaGetErrorString(cudaErrorNotSupported), message), nullptr);
}

TEST_F(Kernels, LaunchesAreChecked) {
  kernels::StridedCopyParams params{};
  void* args[] = {&params};
  CUDA_ERROR(cudaLaunchKernel(strided_copy_stub(), dim3(0), dim3(32), args, 0, nullptr),
             cudaErrorInvalidConfiguration);
  CUDA_ERROR(cudaLaunchKernel(strided_copy_stub(), dim3(1), dim3(2048), args, 0, nullptr),
             cudaErrorInvalidConfiguration);
  const auto with_shared = [&](std::size_t nbytes) {
    return cudaLaunchKernel(strided_copy_stub(), dim3(1), dim3(32), args, nbytes, nullptr);
  };
  CUDA_OK(with_shared(48 << 10));
  // More has to be asked for first, and the device has an end.
  CUDA_ERROR(with_shared((48 << 10) + 1), cudaErrorInvalidValue);
  constexpr auto kShared = cudaFuncAttributeMaxDynamicSharedMemorySize;
  CUDA_ERROR(cudaFuncSetAttribute(strided_copy_stub(), kShared, 1 << 20), cudaErrorInvalidValue);
  CUDA_OK(cudaFuncSetAttribute(strided_copy_stub(), kShared, 64 << 10));
  CUDA_OK(with_shared(64 << 10));
  CUDA_ERROR(cudaLaunchKernel(&params, dim3(1), dim3(32), args, 0, nullptr),
             cudaErrorInvalidDeviceFunction);
  TestStream stream;
  CUDA_OK(cudaSetDevice(1));
  CUDA_ERROR(cudaLaunchKernel(strided_copy_stub(), dim3(1), dim3(32), args, 0, stream),
             cudaErrorInvalidResourceHandle);
}

}  // namespace
}  // namespace staging::sim
