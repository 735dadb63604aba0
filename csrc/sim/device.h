// One simulated device: its primary context, its default streams, its figures.
//
// Owner: the machine. Thread-safety: the machine's lock.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <thread>

namespace staging::sim {

class Stream;

// What every text that names the device says.
inline constexpr const char* kDeviceName = "Simulated device";

struct Device {
  // Set by the calls that initialise a context in CUDA, never by queries.
  bool context_active = false;
  Stream* legacy = nullptr;  // made with the context
  std::map<std::thread::id, Stream*> per_thread;
  unsigned peers = 0;  // a bit for each device whose memory was made accessible
  // Of the default memory pool: attributes that were set.
  std::map<int, std::uint64_t> pool_attributes;
  std::uint64_t pool_used = 0;  // bytes of cudaMallocAsync
  std::uint64_t pool_used_high = 0;
};

// The figures of compute capability 9.0, so that code built for sm_90 is launched.
void fill_properties(int device, std::size_t capacity, cudaDeviceProp* out);
// False: no such attribute.
bool device_attribute(int device, cudaDeviceAttr attribute, int* out);

}  // namespace staging::sim
