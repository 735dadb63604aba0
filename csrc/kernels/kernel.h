// How a kernel of this package is written so that one source runs on the GPU, on the host
// backend and over the simulated device.
//
// Purpose: four files a kernel.
//   <name>.h    what the rest of the core sees: the parameters (a plain struct, passed by
//               value) and the function that launches it.
//   <name>.cuh  the body: STAGING_KERNEL void <name>_kernel(<Name>Params params) { … }
//               in namespace staging::kernels.
//   <name>.cu   nvcc: includes the body and returns its stub, STAGING_CUDA_STUB(<name>).
//   <name>.cpp  the host compiler: includes the same body and defines the `Kernel`,
//               STAGING_DEFINE_KERNEL(<name>, barriers), and the launch function.
//   Add the kernel to registry.cpp, and the sources to CMakeLists.txt. Compiled as plain C++
//   the body sees threadIdx, blockIdx, blockDim, gridDim, __syncthreads() and __shared__
//   with CUDA's meaning (see host_grid.h). A parameter that is large, or indexed at run time, is
//   declared STAGING_PARAMS(<Name>Params) params: read where it lies instead of copied to each
//   thread.
// Thread-safety: bodies hold no state.
//
// The simulated device finds the host function by the kernel's name (find_kernel).
#pragma once

#define STAGING_STRINGIFY(text) #text

#if defined(__CUDACC__)
#define STAGING_KERNEL __global__
#define STAGING_DEVICE __device__ __forceinline__
#define STAGING_HOST_DEVICE __host__ __device__ __forceinline__
#define STAGING_UNROLL(n) _Pragma(STAGING_STRINGIFY(unroll n))
#define STAGING_PARAMS(Type) const __grid_constant__ Type
#define STAGING_CUDA_STUB(name)                           \
  namespace staging::kernels {                            \
  const void* name##_cuda_stub() noexcept {               \
    return reinterpret_cast<const void*>(&name##_kernel); \
  }                                                       \
  }
#else
#include "kernels/host_grid.h"
#include "runtime/runtime.h"
// Internal linkage: nvcc's host stub has the external symbol of the same name.
#define STAGING_KERNEL [[maybe_unused]] static
#define STAGING_DEVICE inline
#define STAGING_HOST_DEVICE inline
#define STAGING_UNROLL(n) _Pragma(STAGING_STRINGIFY(GCC unroll n))
#define STAGING_PARAMS(Type) const Type&

#if defined(STAGING_WITH_CUDA)
#define STAGING_DEFINE_KERNEL(name, barriers)                                        \
  const void* name##_cuda_stub() noexcept;                                           \
  const ::staging::Kernel& name() noexcept {                                         \
    static const ::staging::Kernel kernel{                                           \
        #name "_kernel", name##_cuda_stub(), &run_on_host<&name##_kernel, barriers>, \
        kParamNbytes<&name##_kernel>.data(), kParamNbytes<&name##_kernel>.size()};   \
    return kernel;                                                                   \
  }
#else
#define STAGING_DEFINE_KERNEL(name, barriers)                                      \
  const ::staging::Kernel& name() noexcept {                                       \
    static const ::staging::Kernel kernel{                                         \
        #name "_kernel", nullptr, &run_on_host<&name##_kernel, barriers>,          \
        kParamNbytes<&name##_kernel>.data(), kParamNbytes<&name##_kernel>.size()}; \
    return kernel;                                                                 \
  }
#endif
#endif
