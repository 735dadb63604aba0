// Entry points: memory.
#include <cuda_runtime_api.h>

#include "sim/machine.h"
#include "sim/transfer.h"
#include "sim/unmodelled.h"

using namespace staging::sim;

namespace {

// Frames a call that needs a context and may break a capture.
template <typename Body>
cudaError_t memory_call(CallId id, Body&& body) {
  return locked_call(id, [&](Call& call, Machine& machine, Lock& lock) {
    if (machine.device_count() == 0) return cudaErrorNoDevice;
    if (const cudaError_t error = machine.captures.check_unsafe_call(); error != cudaSuccess) {
      return error;
    }
    machine.activate(thread_state.device);
    return body(call, machine, lock);
  });
}

cudaError_t allocate_pinned(CallId id, void** out, std::size_t nbytes, unsigned flags) {
  return memory_call(id, [&](Call& call, Machine& machine, Lock&) {
    call.note(nullptr, nbytes);
    constexpr unsigned kKnown =
        cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined;
    if (out == nullptr || (flags & ~kKnown) != 0) return cudaErrorInvalidValue;
    return machine.memory.allocate_pinned(thread_state.device, nbytes, flags, out);
  });
}

// The memory goes when the stream gets there.
class FreeWork final : public Work {
 public:
  FreeWork(void* pointer, std::uint64_t allocation)
      : Work(Kind::kMemory, /*brief=*/true), pointer_(pointer), allocation_(allocation) {}

  cudaError_t run() const override {
    Machine& machine = Machine::get();
    Allocation* const allocation = machine.memory.starting_at(pointer_, Space::kDevice);
    if (allocation == nullptr || allocation->id != allocation_) return cudaSuccess;
    machine.device(allocation->device).pool_used -= allocation->nbytes;
    machine.memory.free(*allocation);
    return cudaSuccess;
  }
  std::string describe() const override { return "a stream-ordered free"; }

 private:
  void* pointer_;
  std::uint64_t allocation_;
};

// The default pool's handle: one for each device.
char g_pools[kMaxDevices];
cudaMemPool_t pool_of(int device) {
  return reinterpret_cast<cudaMemPool_t>(&g_pools[device]);
}
int device_of(cudaMemPool_t pool) {
  const auto index = reinterpret_cast<char*>(pool) - g_pools;
  return index >= 0 && index < kMaxDevices ? static_cast<int>(index) : -1;
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** out, std::size_t nbytes) {
  return memory_call(CallId::cudaMalloc, [&](Call& call, Machine& machine, Lock&) {
    call.note(nullptr, nbytes);
    if (out == nullptr) return cudaErrorInvalidValue;
    return machine.memory.allocate_device(thread_state.device, nbytes, out);
  });
}

cudaError_t cudaFree(void* pointer) {
  return memory_call(CallId::cudaFree, [&](Call&, Machine& machine, Lock& lock) {
    if (pointer == nullptr) return machine.lost();
    Allocation* allocation = machine.memory.starting_at(pointer, Space::kDevice);
    if (allocation == nullptr) return cudaErrorInvalidValue;
    machine.before_free(lock, *allocation, "cudaFree");
    // Another thread may have freed it while this one waited.
    allocation = machine.memory.starting_at(pointer, Space::kDevice);
    if (allocation == nullptr) return cudaErrorInvalidValue;
    machine.memory.free(*allocation);
    return machine.lost();
  });
}

cudaError_t cudaMallocAsync(void** out, std::size_t nbytes, cudaStream_t handle) {
  return locked_call(CallId::cudaMallocAsync, [&](Call& call, Machine& machine, Lock&) {
    call.note(handle, nbytes);
    if (out == nullptr) return cudaErrorInvalidValue;
    if (machine.device_count() == 0) return cudaErrorNoDevice;
    Stream* const stream = machine.resolve(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (stream->capture != nullptr) {
      // Memory nodes, whose memory belongs to the graph, are not modelled.
      machine.captures.invalidate(*stream->capture);
      return unmodelled("unmodelled-call", "cudaMallocAsync under capture");
    }
    const cudaError_t error = machine.memory.allocate_device(stream->device, nbytes, out);
    if (error == cudaSuccess) {
      Device& device = machine.device(stream->device);
      device.pool_used += nbytes;
      device.pool_used_high = std::max(device.pool_used_high, device.pool_used);
    }
    return error;
  });
}

cudaError_t cudaFreeAsync(void* pointer, cudaStream_t handle) {
  return locked_call(CallId::cudaFreeAsync, [&](Call& call, Machine& machine, Lock& lock) {
    call.note(handle);
    if (pointer == nullptr) return cudaSuccess;
    if (machine.device_count() == 0) return cudaErrorNoDevice;
    Stream* const stream = machine.resolve(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    const Allocation* const allocation = machine.memory.starting_at(pointer, Space::kDevice);
    if (allocation == nullptr) return cudaErrorInvalidValue;
    if (stream->capture != nullptr) {
      // It "must be passed the address of a graph allocation", and there are none.
      machine.captures.invalidate(*stream->capture);
      return cudaErrorInvalidValue;
    }
    return machine.issue(lock, call, *stream, FreeWork(pointer, allocation->id),
                         cudaGraphNodeTypeMemFree);
  });
}

cudaError_t cudaMallocHost(void** out, std::size_t nbytes) {
  return allocate_pinned(CallId::cudaMallocHost, out, nbytes, cudaHostAllocDefault);
}

cudaError_t cudaHostAlloc(void** out, std::size_t nbytes, unsigned flags) {
  return allocate_pinned(CallId::cudaHostAlloc, out, nbytes, flags);
}

cudaError_t cudaFreeHost(void* pointer) {
  return memory_call(CallId::cudaFreeHost, [&](Call&, Machine& machine, Lock& lock) {
    if (pointer == nullptr) return machine.lost();
    Allocation* allocation = machine.memory.starting_at(pointer, Space::kPinned);
    if (allocation == nullptr) return cudaErrorInvalidValue;
    machine.before_free(lock, *allocation, "cudaFreeHost");
    allocation = machine.memory.starting_at(pointer, Space::kPinned);
    if (allocation == nullptr) return cudaErrorInvalidValue;
    machine.memory.free(*allocation);
    return machine.lost();
  });
}

cudaError_t cudaHostRegister(void* pointer, std::size_t nbytes, unsigned flags) {
  return memory_call(CallId::cudaHostRegister, [&](Call& call, Machine& machine, Lock&) {
    call.note(nullptr, nbytes);
    constexpr unsigned kKnown = cudaHostRegisterPortable | cudaHostRegisterMapped;
    if ((flags & cudaHostRegisterReadOnly) != 0) {
      thread_state.unmodelled = nullptr;  // CUDA's own answer where a device lacks the attribute
      return cudaErrorNotSupported;
    }
    if ((flags & cudaHostRegisterIoMemory) != 0) {
      return unmodelled("unmodelled-call", "cudaHostRegister with cudaHostRegisterIoMemory");
    }
    if ((flags & ~kKnown) != 0) return cudaErrorInvalidValue;
    return machine.memory.register_host(thread_state.device, pointer, nbytes, flags);
  });
}

cudaError_t cudaHostUnregister(void* pointer) {
  return memory_call(CallId::cudaHostUnregister, [&](Call&, Machine& machine, Lock& lock) {
    Allocation* allocation = machine.memory.starting_at(pointer, Space::kRegistered);
    if (allocation == nullptr) return cudaErrorHostMemoryNotRegistered;
    machine.before_free(lock, *allocation, "cudaHostUnregister");
    allocation = machine.memory.starting_at(pointer, Space::kRegistered);
    if (allocation == nullptr) return cudaErrorHostMemoryNotRegistered;
    machine.memory.free(*allocation);
    return machine.lost();
  });
}

// Unified addressing: the address is the same on both sides.
cudaError_t cudaHostGetDevicePointer(void** out, void* host, unsigned flags) {
  return locked_call(CallId::cudaHostGetDevicePointer, [&](Call&, Machine& machine, Lock&) {
    if (out == nullptr || flags != 0) return cudaErrorInvalidValue;
    const Allocation* const allocation = machine.memory.table().find(host);
    if (allocation == nullptr || allocation->space == Space::kDevice) return cudaErrorInvalidValue;
    *out = host;
    return cudaSuccess;
  });
}

cudaError_t cudaHostGetFlags(unsigned* flags, void* host) {
  return locked_call(CallId::cudaHostGetFlags, [&](Call&, Machine& machine, Lock&) {
    if (flags == nullptr) return cudaErrorInvalidValue;
    const Allocation* const allocation = machine.memory.table().find(host);
    if (allocation == nullptr || allocation->space != Space::kPinned) return cudaErrorInvalidValue;
    *flags = allocation->flags | cudaHostAllocMapped;
    return cudaSuccess;
  });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* out, const void* pointer) {
  return locked_call(CallId::cudaPointerGetAttributes, [&](Call&, Machine& machine, Lock&) {
    if (out == nullptr) return cudaErrorInvalidValue;
    *out = {};
    out->type = cudaMemoryTypeUnregistered;
    out->device = cudaInvalidDeviceId;
    const Allocation* const allocation = machine.memory.table().find(pointer);
    if (allocation == nullptr) {
      out->hostPointer = const_cast<void*>(pointer);
      return cudaSuccess;
    }
    out->device = allocation->device;
    out->devicePointer = const_cast<void*>(pointer);
    if (allocation->space == Space::kDevice) {
      out->type = cudaMemoryTypeDevice;
    } else {
      out->type = cudaMemoryTypeHost;
      out->hostPointer = const_cast<void*>(pointer);
    }
    return cudaSuccess;
  });
}

cudaError_t cudaMemGetInfo(std::size_t* free_nbytes, std::size_t* total_nbytes) {
  return locked_call(CallId::cudaMemGetInfo, [&](Call&, Machine& machine, Lock&) {
    if (free_nbytes == nullptr || total_nbytes == nullptr) return cudaErrorInvalidValue;
    if (machine.device_count() == 0) return cudaErrorNoDevice;
    machine.activate(thread_state.device);
    *total_nbytes = machine.memory.capacity();
    *free_nbytes = *total_nbytes - machine.memory.used(thread_state.device);
    return cudaSuccess;
  });
}

// -- the default memory pool; its attributes are kept and change nothing -------------------

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  return locked_call(CallId::cudaDeviceGetDefaultMemPool, [&](Call&, Machine& machine, Lock&) {
    if (pool == nullptr) return cudaErrorInvalidValue;
    if (!machine.valid_device(device)) return cudaErrorInvalidDevice;
    *pool = pool_of(device);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int device) {
  return locked_call(CallId::cudaDeviceGetMemPool, [&](Call&, Machine& machine, Lock&) {
    if (pool == nullptr) return cudaErrorInvalidValue;
    if (!machine.valid_device(device)) return cudaErrorInvalidDevice;
    *pool = pool_of(device);
    return cudaSuccess;
  });
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  return locked_call(CallId::cudaMemPoolGetAttribute, [&](Call&, Machine& machine, Lock&) {
    const int index = device_of(pool);
    if (!machine.valid_device(index) || value == nullptr) return cudaErrorInvalidValue;
    Device& device = machine.device(index);
    switch (attribute) {
      case cudaMemPoolAttrReservedMemCurrent:
      case cudaMemPoolAttrUsedMemCurrent:
        *static_cast<std::uint64_t*>(value) = device.pool_used;
        return cudaSuccess;
      case cudaMemPoolAttrReservedMemHigh:
      case cudaMemPoolAttrUsedMemHigh:
        *static_cast<std::uint64_t*>(value) = device.pool_used_high;
        return cudaSuccess;
      case cudaMemPoolAttrReleaseThreshold:
        *static_cast<std::uint64_t*>(value) = device.pool_attributes[attribute];
        return cudaSuccess;
      default:
        *static_cast<int*>(value) = static_cast<int>(device.pool_attributes[attribute]);
        return cudaSuccess;
    }
  });
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  return locked_call(CallId::cudaMemPoolSetAttribute, [&](Call&, Machine& machine, Lock&) {
    const int index = device_of(pool);
    if (!machine.valid_device(index) || value == nullptr) return cudaErrorInvalidValue;
    Device& device = machine.device(index);
    switch (attribute) {
      case cudaMemPoolAttrReservedMemHigh:
      case cudaMemPoolAttrUsedMemHigh:
        if (*static_cast<std::uint64_t*>(value) != 0) return cudaErrorInvalidValue;
        device.pool_used_high = device.pool_used;
        return cudaSuccess;
      case cudaMemPoolAttrReleaseThreshold:
        device.pool_attributes[attribute] = *static_cast<std::uint64_t*>(value);
        return cudaSuccess;
      default:
        device.pool_attributes[attribute] = static_cast<std::uint64_t>(*static_cast<int*>(value));
        return cudaSuccess;
    }
  });
}

cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const cudaMemAccessDesc*, std::size_t) {
  return locked_call(CallId::cudaMemPoolSetAccess, [&](Call&, Machine& machine, Lock&) {
    return machine.valid_device(device_of(pool)) ? cudaSuccess : cudaErrorInvalidValue;
  });
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, std::size_t) {
  return locked_call(CallId::cudaMemPoolTrimTo, [&](Call&, Machine& machine, Lock&) {
    return machine.valid_device(device_of(pool)) ? cudaSuccess : cudaErrorInvalidValue;
  });
}

// Graphs here have no memory of their own.
cudaError_t cudaDeviceGetGraphMemAttribute(int device, cudaGraphMemAttributeType, void* value) {
  return locked_call(CallId::cudaDeviceGetGraphMemAttribute, [&](Call&, Machine& machine, Lock&) {
    if (!machine.valid_device(device) || value == nullptr) return cudaErrorInvalidValue;
    *static_cast<std::uint64_t*>(value) = 0;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceSetGraphMemAttribute(int device, cudaGraphMemAttributeType, void*) {
  return locked_call(CallId::cudaDeviceSetGraphMemAttribute, [&](Call&, Machine& machine, Lock&) {
    return machine.valid_device(device) ? cudaSuccess : cudaErrorInvalidValue;
  });
}

}  // extern "C"
