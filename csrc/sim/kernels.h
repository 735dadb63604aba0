// Kernels: which function a launch means, and what runs it on the CPU.
//
// Purpose: nvcc's host code registers each kernel's stub with its mangled name. A launch is
//   looked up by that name: this package's own kernels run their bodies compiled as C++
//   (csrc/kernels), PyTorch's fill kernels have a model (fill_kernel.h), and every other
//   launch fails and says the kernel's name.
// Owner: the process. Thread-safety: safe, with a lock of its own: registration happens
//   while libraries are loaded, before anything else here exists.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sim/memory.h"
#include "sim/work.h"

namespace staging::sim {

// How to run a kernel whose parameters are known.
class KernelModel {
 public:
  virtual ~KernelModel() = default;
  // Of each parameter, in order.
  virtual const std::vector<std::size_t>& parameter_nbytes() const = 0;
  virtual void run(dim3 grid, dim3 block, std::size_t shared_nbytes, void** args) const = 0;
};

struct KernelEntry {
  const void* stub = nullptr;
  const char* mangled = nullptr;
  std::string name;                    // demangled, with parameters
  std::unique_ptr<KernelModel> model;  // null: not modelled
  // Of a launch's dynamic shared memory, in bytes, until an attribute says otherwise.
  mutable std::atomic<std::size_t> shared_limit{48 << 10};
};

class Kernels {
 public:
  static Kernels& get();

  void add(const void* stub, const char* mangled);
  // Null where no such stub was registered. Finds the model on first use.
  const KernelEntry* find(const void* stub);
};

class KernelWork final : public Work {
 public:
  KernelWork(const KernelEntry& entry, dim3 grid, dim3 block, std::size_t shared_nbytes,
             void** args);

  cudaError_t run() const override;
  std::string describe() const override { return "the kernel " + entry_.name; }
  // Conservative, as a garbage collector is: any word of an argument may be an address.
  bool uses(std::uintptr_t begin, std::uintptr_t end) const override;

 private:
  const KernelEntry& entry_;
  dim3 grid_, block_;
  std::size_t shared_nbytes_;
  std::vector<std::uint64_t> bytes_;  // the arguments, each at 16-byte alignment
  std::vector<std::size_t> offsets_;  // in bytes
};

}  // namespace staging::sim
