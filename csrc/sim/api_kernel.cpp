// Entry points: registration and launches of kernels.
#include <cuda_runtime_api.h>

#include "sim/kernels.h"
#include "sim/machine.h"
#include "sim/unmodelled.h"

using namespace staging::sim;

namespace {

cudaError_t launch(CallId id, const void* stub, dim3 grid, dim3 block, void** args,
                   std::size_t shared_nbytes, cudaStream_t handle) {
  return runtime_call(id, [&](Call& call) {
    call.note(handle);
    const KernelEntry* const entry = Kernels::get().find(stub);
    if (entry == nullptr) return cudaErrorInvalidDeviceFunction;
    const auto threads = static_cast<std::uint64_t>(block.x) * block.y * block.z;
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || threads == 0 || threads > 1024 ||
        block.z > 64 || grid.y > 65535 || grid.z > 65535) {
      return cudaErrorInvalidConfiguration;
    }
    if (shared_nbytes > entry->shared_limit.load(std::memory_order_relaxed)) {
      return cudaErrorInvalidValue;
    }
    if (entry->model == nullptr) return unmodelled("unmodelled-kernel", entry->name);
    Machine& machine = Machine::get();
    Lock lock(machine.mutex);
    if (machine.device_count() == 0) return cudaErrorNoDevice;
    Stream* const stream = machine.resolve(handle);
    // A kernel runs on the current device only.
    if (stream == nullptr || stream->device != thread_state.device) {
      return cudaErrorInvalidResourceHandle;
    }
    return machine.issue(lock, call, *stream, KernelWork(*entry, grid, block, shared_nbytes, args),
                         cudaGraphNodeTypeKernel);
  });
}

// More dynamic shared memory than 48 KiB needs the attribute, up to what the device has for a
// block.
cudaError_t set_attribute(CallId id, const void* stub, cudaFuncAttribute attribute, int value) {
  return runtime_call(id, [&](Call&) {
    const KernelEntry* const entry = Kernels::get().find(stub);
    if (entry == nullptr) return cudaErrorInvalidDeviceFunction;
    if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
      if (value < 0 || value > (227 << 10)) return cudaErrorInvalidValue;
      entry->shared_limit.store(static_cast<std::size_t>(value), std::memory_order_relaxed);
    }
    return cudaSuccess;
  });
}

// Limits of the device, not of the kernel: what it really needs is in code that is not run.
cudaError_t occupancy(CallId id, int* blocks, int block_size) {
  return runtime_call(id, [&](Call&) {
    if (blocks == nullptr || block_size <= 0) return cudaErrorInvalidValue;
    *blocks = std::max(1, std::min(32, 2048 / block_size));
    return cudaSuccess;
  });
}

}  // namespace

extern "C" {

void** __cudaRegisterFatBinary(void* binary) {
  Counters::add(CallId::__cudaRegisterFatBinary);
  return new void*(binary);
}

void __cudaRegisterFatBinaryEnd(void**) {
  Counters::add(CallId::__cudaRegisterFatBinaryEnd);
}

void __cudaUnregisterFatBinary(void** handle) {
  Counters::add(CallId::__cudaUnregisterFatBinary);
  delete handle;
}

void __cudaRegisterFunction(void**, const char* stub, char*, const char* mangled, int, uint3*,
                            uint3*, dim3*, dim3*, int*) {
  Counters::add(CallId::__cudaRegisterFunction);
  Kernels::get().add(stub, mangled);
}

// Device variables have no memory here; whoever asks for one's address meets a stub.
void __cudaRegisterVar(void**, char*, char*, const char*, int, std::size_t, int, int) {
  Counters::add(CallId::__cudaRegisterVar);
}

char __cudaInitModule(void**) {
  Counters::add(CallId::__cudaInitModule);
  return 1;
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared_nbytes,
                                     CUstream_st* stream) {
  Counters::add(CallId::__cudaPushCallConfiguration);
  ThreadState& state = thread_state;
  if (state.launch_depth == static_cast<int>(std::size(state.launches))) return 1;
  state.launches[state.launch_depth++] = {
      {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, shared_nbytes, stream};
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared_nbytes,
                                       void* stream) {
  Counters::add(CallId::__cudaPopCallConfiguration);
  ThreadState& state = thread_state;
  if (state.launch_depth == 0) return cudaErrorMissingConfiguration;
  const LaunchConfig& launch = state.launches[--state.launch_depth];
  *grid = dim3(launch.grid[0], launch.grid[1], launch.grid[2]);
  *block = dim3(launch.block[0], launch.block[1], launch.block[2]);
  *shared_nbytes = launch.shared_nbytes;
  *static_cast<cudaStream_t*>(stream) = launch.stream;
  return cudaSuccess;
}

// The kernel's handle is its stub, as cudaLaunchKernel takes it.
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* stub) {
  Counters::add(CallId::__cudaGetKernel);
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(stub));
  return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** args,
                               std::size_t shared_nbytes, cudaStream_t stream) {
  return launch(CallId::__cudaLaunchKernel, kernel, grid, block, args, shared_nbytes, stream);
}

cudaError_t cudaLaunchKernel(const void* stub, dim3 grid, dim3 block, void** args,
                             std::size_t shared_nbytes, cudaStream_t stream) {
  return launch(CallId::cudaLaunchKernel, stub, grid, block, args, shared_nbytes, stream);
}

// Attributes are hints, but for clusters and cooperation, which no modelled kernel uses.
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* stub, void** args) {
  if (config == nullptr) return cudaErrorInvalidValue;
  return launch(CallId::cudaLaunchKernelExC, stub, config->gridDim, config->blockDim, args,
                config->dynamicSmemBytes, config->stream);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* out, const void* stub) {
  return runtime_call(CallId::cudaFuncGetAttributes, [&](Call&) {
    if (out == nullptr) return cudaErrorInvalidValue;
    if (Kernels::get().find(stub) == nullptr) return cudaErrorInvalidDeviceFunction;
    *out = {};
    out->maxThreadsPerBlock = 1024;
    out->numRegs = 32;
    out->ptxVersion = 90;
    out->binaryVersion = 90;
    out->maxDynamicSharedSizeBytes = 48 << 10;
    return cudaSuccess;
  });
}

cudaError_t cudaFuncGetName(const char** name, const void* stub) {
  return runtime_call(CallId::cudaFuncGetName, [&](Call&) {
    const KernelEntry* const entry = Kernels::get().find(stub);
    if (name == nullptr) return cudaErrorInvalidValue;
    if (entry == nullptr) return cudaErrorInvalidDeviceFunction;
    *name = entry->mangled;
    return cudaSuccess;
  });
}

cudaError_t cudaFuncSetAttribute(const void* stub, cudaFuncAttribute attribute, int value) {
  return set_attribute(CallId::cudaFuncSetAttribute, stub, attribute, value);
}

cudaError_t cudaFuncSetCacheConfig(const void* stub, cudaFuncCache) {
  return runtime_call(CallId::cudaFuncSetCacheConfig, [&](Call&) {
    return Kernels::get().find(stub) == nullptr ? cudaErrorInvalidDeviceFunction : cudaSuccess;
  });
}

cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t kernel, cudaFuncAttribute attribute,
                                            int value, int) {
  return set_attribute(CallId::cudaKernelSetAttributeForDevice, kernel, attribute, value);
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int block_size,
                                                          std::size_t) {
  return occupancy(CallId::cudaOccupancyMaxActiveBlocksPerMultiprocessor, blocks, block_size);
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*,
                                                                   int block_size, std::size_t,
                                                                   unsigned) {
  return occupancy(CallId::cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, blocks,
                   block_size);
}

}  // extern "C"
