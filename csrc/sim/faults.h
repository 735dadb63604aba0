// Faults on demand: the nth call of a name fails.
//
// Purpose: tests of what a program does when CUDA fails. A sticky fault destroys the
//   context, so that every later call fails the same way. A deferred one lets the call
//   succeed and fails (always sticky) when the work that it enqueued runs. One with a library
//   counts the calls that this library makes, and no others: PyTorch's own guards end the
//   process where a call of theirs fails.
// Owner: the process. Thread-safety: safe, with a lock of its own.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>
#include <string>

#include "sim/calls.h"

namespace staging::sim {

struct Fault {
  CallId call;
  std::uint64_t nth;  // 1: the next one
  cudaError_t code;
  bool sticky;
  bool deferred;
  std::string library;  // in the path of the file that makes the call; empty: any
};

class Faults {
 public:
  static Faults& get();

  // Returns a number to remove it by.
  int add(const Fault& fault);
  // How often the fault happened (0 or 1).
  int remove(int id);
  void clear();
  // Counts a call down; the fault that is due now, if any.
  std::optional<Fault> check(CallId call);
};

}  // namespace staging::sim
