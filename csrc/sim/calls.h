// The runtime's entry points that the simulated device models, each with a number.
//
// Purpose: one list from which the counters, the fault injector, the call record and the
//   generated stubs (of what is *not* modelled; see generate_stubs.py) take their names.
// Owner: constants. Thread-safety: immutable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

// generate_stubs.py reads this list: one X(name) each, nothing else in parentheses.
#define STAGING_SIM_CALLS(X)                                \
  /* errors and versions */                                 \
  X(cudaGetErrorName)                                       \
  X(cudaGetErrorString)                                     \
  X(cudaGetLastError)                                       \
  X(cudaPeekAtLastError)                                    \
  X(cudaDriverGetVersion)                                   \
  X(cudaRuntimeGetVersion)                                  \
  X(cudaGetDriverEntryPoint)                                \
  X(cudaGetDriverEntryPointByVersion)                       \
  X(cudaProfilerStart)                                      \
  X(cudaProfilerStop)                                       \
  /* devices */                                             \
  X(cudaGetDeviceCount)                                     \
  X(cudaGetDevice)                                          \
  X(cudaSetDevice)                                          \
  X(cudaInitDevice)                                         \
  X(cudaGetDeviceFlags)                                     \
  X(cudaSetDeviceFlags)                                     \
  X(cudaGetDeviceProperties)                                \
  X(cudaDeviceGetAttribute)                                 \
  X(cudaDeviceGetPCIBusId)                                  \
  X(cudaDeviceGetByPCIBusId)                                \
  X(cudaDeviceGetStreamPriorityRange)                       \
  X(cudaDeviceGetLimit)                                     \
  X(cudaDeviceSetLimit)                                     \
  X(cudaDeviceCanAccessPeer)                                \
  X(cudaDeviceEnablePeerAccess)                             \
  X(cudaDeviceDisablePeerAccess)                            \
  X(cudaDeviceSynchronize)                                  \
  /* streams */                                             \
  X(cudaStreamCreate)                                       \
  X(cudaStreamCreateWithFlags)                              \
  X(cudaStreamCreateWithPriority)                           \
  X(cudaStreamDestroy)                                      \
  X(cudaStreamSynchronize)                                  \
  X(cudaStreamQuery)                                        \
  X(cudaStreamWaitEvent)                                    \
  X(cudaStreamGetFlags)                                     \
  X(cudaStreamGetPriority)                                  \
  X(cudaStreamGetDevice)                                    \
  X(cudaStreamGetId)                                        \
  X(cudaStreamAddCallback)                                  \
  X(cudaLaunchHostFunc)                                     \
  /* events */                                              \
  X(cudaEventCreate)                                        \
  X(cudaEventCreateWithFlags)                               \
  X(cudaEventDestroy)                                       \
  X(cudaEventRecord)                                        \
  X(cudaEventRecordWithFlags)                               \
  X(cudaEventQuery)                                         \
  X(cudaEventSynchronize)                                   \
  X(cudaEventElapsedTime)                                   \
  /* memory */                                              \
  X(cudaMalloc)                                             \
  X(cudaFree)                                               \
  X(cudaMallocAsync)                                        \
  X(cudaFreeAsync)                                          \
  X(cudaMallocHost)                                         \
  X(cudaHostAlloc)                                          \
  X(cudaFreeHost)                                           \
  X(cudaHostRegister)                                       \
  X(cudaHostUnregister)                                     \
  X(cudaHostGetDevicePointer)                               \
  X(cudaHostGetFlags)                                       \
  X(cudaPointerGetAttributes)                               \
  X(cudaMemGetInfo)                                         \
  X(cudaDeviceGetDefaultMemPool)                            \
  X(cudaDeviceGetMemPool)                                   \
  X(cudaMemPoolGetAttribute)                                \
  X(cudaMemPoolSetAttribute)                                \
  X(cudaMemPoolSetAccess)                                   \
  X(cudaMemPoolTrimTo)                                      \
  X(cudaDeviceGetGraphMemAttribute)                         \
  X(cudaDeviceSetGraphMemAttribute)                         \
  /* copies and fills */                                    \
  X(cudaMemcpy)                                             \
  X(cudaMemcpyAsync)                                        \
  X(cudaMemcpyPeer)                                         \
  X(cudaMemcpyPeerAsync)                                    \
  X(cudaMemcpyBatchAsync)                                   \
  X(cudaMemcpy2D)                                           \
  X(cudaMemcpy2DAsync)                                      \
  X(cudaMemset)                                             \
  X(cudaMemsetAsync)                                        \
  X(cudaMemset2D)                                           \
  X(cudaMemset2DAsync)                                      \
  X(cudaCreateChannelDesc)                                  \
  /* kernels */                                             \
  X(cudaLaunchKernel)                                       \
  X(cudaLaunchKernelExC)                                    \
  X(__cudaLaunchKernel)                                     \
  X(__cudaGetKernel)                                        \
  X(cudaFuncGetAttributes)                                  \
  X(cudaFuncGetName)                                        \
  X(cudaFuncSetAttribute)                                   \
  X(cudaFuncSetCacheConfig)                                 \
  X(cudaKernelSetAttributeForDevice)                        \
  X(cudaOccupancyMaxActiveBlocksPerMultiprocessor)          \
  X(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags) \
  X(__cudaPushCallConfiguration)                            \
  X(__cudaPopCallConfiguration)                             \
  X(__cudaRegisterFatBinary)                                \
  X(__cudaRegisterFatBinaryEnd)                             \
  X(__cudaUnregisterFatBinary)                              \
  X(__cudaRegisterFunction)                                 \
  X(__cudaRegisterVar)                                      \
  X(__cudaInitModule)                                       \
  /* stream capture and graphs */                           \
  X(cudaStreamBeginCapture)                                 \
  X(cudaStreamBeginCaptureToGraph)                          \
  X(cudaStreamEndCapture)                                   \
  X(cudaStreamIsCapturing)                                  \
  X(cudaStreamGetCaptureInfo)                               \
  X(cudaStreamUpdateCaptureDependencies)                    \
  X(cudaThreadExchangeStreamCaptureMode)                    \
  X(cudaGraphCreate)                                        \
  X(cudaGraphDestroy)                                       \
  X(cudaGraphGetNodes)                                      \
  X(cudaGraphGetRootNodes)                                  \
  X(cudaGraphGetEdges)                                      \
  X(cudaGraphNodeGetType)                                   \
  X(cudaGraphNodeGetDependencies)                           \
  X(cudaGraphAddEmptyNode)                                  \
  X(cudaGraphAddDependencies)                               \
  X(cudaGraphInstantiate)                                   \
  X(cudaGraphInstantiateWithFlags)                          \
  X(cudaGraphExecDestroy)                                   \
  X(cudaGraphExecUpdate)                                    \
  X(cudaGraphUpload)                                        \
  X(cudaGraphLaunch)                                        \
  X(cudaUserObjectCreate)                                   \
  X(cudaUserObjectRetain)                                   \
  X(cudaUserObjectRelease)                                  \
  X(cudaGraphRetainUserObject)                              \
  X(cudaGraphReleaseUserObject)

namespace staging::sim {

enum class CallId : std::uint16_t {
#define STAGING_SIM_ENUM(name) name,
  STAGING_SIM_CALLS(STAGING_SIM_ENUM)
#undef STAGING_SIM_ENUM
      kCount
};

inline constexpr std::size_t kCallCount = static_cast<std::size_t>(CallId::kCount);

inline constexpr const char* kCallNames[kCallCount] = {
#define STAGING_SIM_NAME(name) #name,
    STAGING_SIM_CALLS(STAGING_SIM_NAME)
#undef STAGING_SIM_NAME
};

constexpr const char* name_of(CallId id) {
  return kCallNames[static_cast<std::size_t>(id)];
}

// kCount where no modelled entry point has the name.
constexpr CallId find_call(std::string_view name) {
  for (std::size_t i = 0; i < kCallCount; ++i) {
    if (name == kCallNames[i]) return static_cast<CallId>(i);
  }
  return CallId::kCount;
}

}  // namespace staging::sim
