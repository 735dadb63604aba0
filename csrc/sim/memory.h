// Every piece of memory that the simulated devices know.
//
// Purpose: allocation and registration with CUDA's rules, and the check of a copy's range:
//   it lies in one allocation as a whole, or in none (pageable host memory).
// Owner: the machine. Thread-safety: the machine's lock.
//
// Nothing here knows of streams: whoever frees memory makes sure first that no enqueued
// work uses it (see Machine::before_free).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "sim/arena.h"
#include "sim/page_access.h"
#include "sim/pinned_memory.h"
#include "sim/pointer_table.h"

namespace staging::sim {

// One end of a copy: what kind of memory, and where the stand-in accesses it.
struct Range {
  enum class Kind : std::uint8_t { kPageable, kPinned, kDevice };
  Kind kind = Kind::kPageable;
  int device = -1;
  std::uint64_t allocation = 0;        // its id; 0 for pageable memory
  const std::byte* address = nullptr;  // as the program knows it
  std::size_t nbytes = 0;
  Place place;

  bool host() const noexcept { return kind != Kind::kDevice; }
  bool overlaps(std::uintptr_t begin, std::uintptr_t end) const noexcept {
    const auto first = reinterpret_cast<std::uintptr_t>(address);
    return first < end && begin < first + nbytes;
  }
};

class Memory {
 public:
  explicit Memory(std::size_t device_capacity) : capacity_(device_capacity) {}

  cudaError_t allocate_device(int device, std::size_t nbytes, void** out);
  cudaError_t allocate_pinned(int device, std::size_t nbytes, unsigned flags, void** out);
  cudaError_t register_host(int device, void* pointer, std::size_t nbytes, unsigned flags);
  void free(Allocation& allocation);

  // The live allocation that begins at `pointer`, if it is in `space`; null otherwise.
  Allocation* starting_at(const void* pointer, Space space);

  // Fails where the range leaves its allocation, runs into one, or lies in freed memory
  // (which is reported, too).
  cudaError_t resolve(const void* pointer, std::size_t nbytes, Range* out);
  // Whether the allocation that `range` was resolved to still exists.
  bool still_there(const Range& range);

  std::size_t used(int device) const;
  std::size_t capacity() const noexcept { return capacity_; }
  PointerTable& table() noexcept { return table_; }

 private:
  Arena& arena(int device);

  const std::size_t capacity_;
  std::vector<Arena*> arenas_;  // by device, made when first used, never destroyed
  PinnedPages pinned_;
  PointerTable table_;
};

}  // namespace staging::sim
