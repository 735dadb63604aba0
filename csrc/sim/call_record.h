// A bounded record of calls, kept on request.
//
// Purpose: a test can say "one transfer, no synchronisation, on that stream". At the limit
//   later calls are counted but not kept.
// Owner: the process. Thread-safety: safe, with a lock of its own.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/calls.h"

namespace staging::sim {

struct CallEntry {
  CallId call;
  cudaError_t result;
  int thread;             // of the operating system
  int device;             // current at the call
  std::uintptr_t stream;  // as passed; 0 where the call has none
  std::uint64_t nbytes;   // moved or allocated
  int kind;               // cudaMemcpyKind of the bytes moved, -1: not a copy
};

class CallRecord {
 public:
  static CallRecord& get();

  void start(std::size_t limit);
  void stop();
  void add(const CallEntry& entry);
  std::vector<CallEntry> entries() const;
  std::size_t dropped() const;
  // One JSON object a line. Appends; false where the file cannot be written.
  bool write(const char* path) const;
};

}  // namespace staging::sim
