// What CUDA keeps per host thread.
//
// Owner: the thread. Thread-safety: seen by its thread only.
#pragma once

#include <cuda_runtime_api.h>

namespace staging::sim {

class Stream;

// dim3 as it is passed; its own constructor would make the thread's state dynamic.
struct LaunchConfig {
  unsigned grid[3];
  unsigned block[3];
  std::size_t shared_nbytes;
  cudaStream_t stream;
};

// Trivially destructible: a thread's last calls may come from destructors of its own.
struct ThreadState {
  int device = 0;
  cudaError_t last_error = cudaSuccess;
  cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
  const char* unmodelled = nullptr;  // text of the last refusal of what is not modelled
  // In a host function or a user object's destructor, which may not call the runtime.
  bool in_callback = false;
  // <<<…>>> pushes, the host stub pops; nesting happens when an argument launches.
  int launch_depth = 0;
  LaunchConfig launches[8] = {};
};

inline constinit thread_local ThreadState thread_state;

}  // namespace staging::sim
