#include "sim/device.h"

#include <cstdio>
#include <cstring>

namespace staging::sim {

namespace {

constexpr int kMultiprocessors = 16;  // few: grids sized by it stay quick on a CPU

}  // namespace

void fill_properties(int device, std::size_t capacity, cudaDeviceProp* out) {
  *out = {};
  std::snprintf(out->name, sizeof out->name, "%s", kDeviceName);
  std::memcpy(out->uuid.bytes, "staging-sim-dev", 15);
  out->uuid.bytes[15] = static_cast<char>(device);
  out->totalGlobalMem = capacity;
  out->sharedMemPerBlock = 48 << 10;
  out->regsPerBlock = 65536;
  out->warpSize = 32;
  out->memPitch = 0x7fffffff;
  out->maxThreadsPerBlock = 1024;
  out->maxThreadsDim[0] = out->maxThreadsDim[1] = 1024;
  out->maxThreadsDim[2] = 64;
  out->maxGridSize[0] = 0x7fffffff;
  out->maxGridSize[1] = out->maxGridSize[2] = 65535;
  out->totalConstMem = 64 << 10;
  out->major = 9;
  out->minor = 0;
  out->textureAlignment = 512;
  out->texturePitchAlignment = 32;
  out->multiProcessorCount = kMultiprocessors;
  out->canMapHostMemory = 1;
  out->surfaceAlignment = 512;
  out->concurrentKernels = 1;
  out->pciBusID = device + 1;
  out->asyncEngineCount = 3;
  out->unifiedAddressing = 1;
  out->memoryBusWidth = 64;
  out->l2CacheSize = 1 << 20;
  out->maxThreadsPerMultiProcessor = 2048;
  out->streamPrioritiesSupported = 1;
  out->globalL1CacheSupported = 1;
  out->localL1CacheSupported = 1;
  out->sharedMemPerMultiprocessor = 228 << 10;
  out->regsPerMultiprocessor = 65536;
  out->canUseHostPointerForRegisteredMem = 1;
  out->sharedMemPerBlockOptin = 227 << 10;
  out->maxBlocksPerMultiProcessor = 32;
  out->reservedSharedMemPerBlock = 1 << 10;
  out->hostRegisterSupported = 1;
  out->memoryPoolsSupported = 1;
  out->deviceNumaId = -1;
  out->hostNumaId = -1;
}

bool device_attribute(int device, cudaDeviceAttr attribute, int* out) {
  cudaDeviceProp p;
  fill_properties(device, 0, &p);
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      *out = p.maxThreadsPerBlock;
      return true;
    case cudaDevAttrMaxBlockDimX:
      *out = p.maxThreadsDim[0];
      return true;
    case cudaDevAttrMaxBlockDimY:
      *out = p.maxThreadsDim[1];
      return true;
    case cudaDevAttrMaxBlockDimZ:
      *out = p.maxThreadsDim[2];
      return true;
    case cudaDevAttrMaxGridDimX:
      *out = p.maxGridSize[0];
      return true;
    case cudaDevAttrMaxGridDimY:
      *out = p.maxGridSize[1];
      return true;
    case cudaDevAttrMaxGridDimZ:
      *out = p.maxGridSize[2];
      return true;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *out = static_cast<int>(p.sharedMemPerBlock);
      return true;
    case cudaDevAttrTotalConstantMemory:
      *out = static_cast<int>(p.totalConstMem);
      return true;
    case cudaDevAttrWarpSize:
      *out = p.warpSize;
      return true;
    case cudaDevAttrMaxPitch:
      *out = static_cast<int>(p.memPitch);
      return true;
    case cudaDevAttrMaxRegistersPerBlock:
      *out = p.regsPerBlock;
      return true;
    case cudaDevAttrClockRate:
      *out = 1'000'000;
      return true;
    case cudaDevAttrMemoryClockRate:
      *out = 1'000'000;
      return true;
    case cudaDevAttrTextureAlignment:
      *out = static_cast<int>(p.textureAlignment);
      return true;
    case cudaDevAttrGpuOverlap:
      *out = 1;
      return true;
    case cudaDevAttrMultiProcessorCount:
      *out = p.multiProcessorCount;
      return true;
    case cudaDevAttrCanMapHostMemory:
      *out = p.canMapHostMemory;
      return true;
    case cudaDevAttrConcurrentKernels:
      *out = p.concurrentKernels;
      return true;
    case cudaDevAttrPciBusId:
      *out = p.pciBusID;
      return true;
    case cudaDevAttrAsyncEngineCount:
      *out = p.asyncEngineCount;
      return true;
    case cudaDevAttrUnifiedAddressing:
      *out = p.unifiedAddressing;
      return true;
    case cudaDevAttrGlobalMemoryBusWidth:
      *out = p.memoryBusWidth;
      return true;
    case cudaDevAttrL2CacheSize:
      *out = p.l2CacheSize;
      return true;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *out = p.maxThreadsPerMultiProcessor;
      return true;
    case cudaDevAttrComputeCapabilityMajor:
      *out = p.major;
      return true;
    case cudaDevAttrComputeCapabilityMinor:
      *out = p.minor;
      return true;
    case cudaDevAttrStreamPrioritiesSupported:
      *out = p.streamPrioritiesSupported;
      return true;
    case cudaDevAttrGlobalL1CacheSupported:
      *out = p.globalL1CacheSupported;
      return true;
    case cudaDevAttrLocalL1CacheSupported:
      *out = p.localL1CacheSupported;
      return true;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *out = static_cast<int>(p.sharedMemPerMultiprocessor);
      return true;
    case cudaDevAttrMaxRegistersPerMultiprocessor:
      *out = p.regsPerMultiprocessor;
      return true;
    case cudaDevAttrCanUseHostPointerForRegisteredMem:
      *out = p.canUseHostPointerForRegisteredMem;
      return true;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *out = static_cast<int>(p.sharedMemPerBlockOptin);
      return true;
    case cudaDevAttrHostRegisterSupported:
      *out = p.hostRegisterSupported;
      return true;
    case cudaDevAttrMaxBlocksPerMultiprocessor:
      *out = p.maxBlocksPerMultiProcessor;
      return true;
    case cudaDevAttrReservedSharedMemoryPerBlock:
      *out = static_cast<int>(p.reservedSharedMemPerBlock);
      return true;
    case cudaDevAttrMemoryPoolsSupported:
      *out = p.memoryPoolsSupported;
      return true;
    case cudaDevAttrNumaId:
    case cudaDevAttrHostNumaId:
      *out = -1;
      return true;
    default:
      // Everything else that CUDA defines is a feature that this device does not have.
      *out = 0;
      return attribute > 0 && attribute < cudaDevAttrMax;
  }
}

}  // namespace staging::sim
