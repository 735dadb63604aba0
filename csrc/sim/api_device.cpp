// Entry points: devices and their primary contexts.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <iterator>

#include "sim/machine.h"

using namespace staging::sim;

namespace {

// Every limit has a value; none changes what the stand-in does.
std::size_t g_limits[cudaLimitPersistingL2CacheSize + 1] = {};

bool known(cudaLimit limit) {
  return limit >= 0 && static_cast<std::size_t>(limit) < std::size(g_limits);
}

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  return runtime_call(CallId::cudaGetDeviceCount, [&](Call&) {
    if (count == nullptr) return cudaErrorInvalidValue;
    *count = config().device_count;
    return *count == 0 ? cudaErrorNoDevice : cudaSuccess;
  });
}

cudaError_t cudaGetDevice(int* device) {
  return runtime_call(CallId::cudaGetDevice, [&](Call&) {
    if (device == nullptr) return cudaErrorInvalidValue;
    *device = thread_state.device;
    return cudaSuccess;
  });
}

// Since CUDA 12 this initialises the device's primary context.
cudaError_t cudaSetDevice(int device) {
  return locked_call(CallId::cudaSetDevice, [&](Call&, Machine& machine, Lock&) {
    if (machine.device_count() == 0) return cudaErrorNoDevice;
    if (!machine.valid_device(device)) return cudaErrorInvalidDevice;
    thread_state.device = device;
    machine.activate(device);
    return cudaSuccess;
  });
}

cudaError_t cudaInitDevice(int device, unsigned, unsigned) {
  return locked_call(CallId::cudaInitDevice, [&](Call&, Machine& machine, Lock&) {
    if (!machine.valid_device(device)) return cudaErrorInvalidDevice;
    machine.activate(device);
    return cudaSuccess;
  });
}

cudaError_t cudaGetDeviceFlags(unsigned* flags) {
  return runtime_call(CallId::cudaGetDeviceFlags, [&](Call&) {
    if (flags == nullptr) return cudaErrorInvalidValue;
    *flags = cudaDeviceScheduleAuto | cudaDeviceMapHost;
    return cudaSuccess;
  });
}

cudaError_t cudaSetDeviceFlags(unsigned) {
  return runtime_call(CallId::cudaSetDeviceFlags, [](Call&) { return cudaSuccess; });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return locked_call(CallId::cudaGetDeviceProperties, [&](Call&, Machine& machine, Lock&) {
    if (properties == nullptr) return cudaErrorInvalidValue;
    if (!machine.valid_device(device)) return cudaErrorInvalidDevice;
    fill_properties(device, machine.memory.capacity(), properties);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return locked_call(CallId::cudaDeviceGetAttribute, [&](Call&, Machine& machine, Lock&) {
    if (value == nullptr) return cudaErrorInvalidValue;
    if (!machine.valid_device(device)) return cudaErrorInvalidDevice;
    return device_attribute(device, attribute, value) ? cudaSuccess : cudaErrorInvalidValue;
  });
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int nbytes, int device) {
  return locked_call(CallId::cudaDeviceGetPCIBusId, [&](Call&, Machine& machine, Lock&) {
    if (text == nullptr || nbytes < 13) return cudaErrorInvalidValue;
    if (!machine.valid_device(device)) return cudaErrorInvalidDevice;
    std::snprintf(text, static_cast<std::size_t>(nbytes), "0000:%02X:00.0", device + 1);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* text) {
  return locked_call(CallId::cudaDeviceGetByPCIBusId, [&](Call&, Machine& machine, Lock&) {
    unsigned bus = 0;
    if (device == nullptr || text == nullptr || std::sscanf(text, "%*x:%x:", &bus) != 1) {
      return cudaErrorInvalidValue;
    }
    *device = static_cast<int>(bus) - 1;
    return machine.valid_device(*device) ? cudaSuccess : cudaErrorInvalidDevice;
  });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return runtime_call(CallId::cudaDeviceGetStreamPriorityRange, [&](Call&) {
    if (least != nullptr) *least = 0;
    if (greatest != nullptr) *greatest = -5;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetLimit(std::size_t* value, cudaLimit limit) {
  return locked_call(CallId::cudaDeviceGetLimit, [&](Call&, Machine&, Lock&) {
    if (value == nullptr) return cudaErrorInvalidValue;
    if (!known(limit)) return cudaErrorUnsupportedLimit;
    *value = g_limits[limit];
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceSetLimit(cudaLimit limit, std::size_t value) {
  return locked_call(CallId::cudaDeviceSetLimit, [&](Call&, Machine&, Lock&) {
    if (!known(limit)) return cudaErrorUnsupportedLimit;
    g_limits[limit] = value;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  return locked_call(CallId::cudaDeviceCanAccessPeer, [&](Call&, Machine& machine, Lock&) {
    if (can == nullptr) return cudaErrorInvalidValue;
    if (!machine.valid_device(device) || !machine.valid_device(peer)) {
      return cudaErrorInvalidDevice;
    }
    *can = device != peer;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  return locked_call(CallId::cudaDeviceEnablePeerAccess, [&](Call&, Machine& machine, Lock&) {
    if (flags != 0) return cudaErrorInvalidValue;
    if (!machine.valid_device(peer) || peer == thread_state.device) return cudaErrorInvalidDevice;
    machine.activate(thread_state.device);
    unsigned& enabled = machine.current().peers;
    if (enabled & (1U << peer)) return cudaErrorPeerAccessAlreadyEnabled;
    enabled |= 1U << peer;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceDisablePeerAccess(int peer) {
  return locked_call(CallId::cudaDeviceDisablePeerAccess, [&](Call&, Machine& machine, Lock&) {
    if (!machine.valid_device(peer)) return cudaErrorInvalidDevice;
    unsigned& enabled = machine.current().peers;
    if ((enabled & (1U << peer)) == 0) return cudaErrorPeerAccessNotEnabled;
    enabled &= ~(1U << peer);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceSynchronize() {
  return locked_call(CallId::cudaDeviceSynchronize, [&](Call&, Machine& machine, Lock& lock) {
    if (machine.device_count() == 0) return cudaErrorNoDevice;
    if (const cudaError_t error = machine.captures.check_unsafe_call(); error != cudaSuccess) {
      return error;
    }
    machine.activate(thread_state.device);
    machine.engine.drain(lock, thread_state.device);
    return machine.lost();
  });
}

}  // extern "C"
