// The pages behind cudaHostAlloc.
//
// Purpose: pinned memory that the stand-in reaches as DMA does, whatever protection the
//   program gives its pages: an anonymous file mapped twice, once for the program and once
//   as an alias. Freed addresses stay reserved, without access, for a while: a late access
//   faults instead of hitting the next owner's bytes.
// Owner: Memory. Thread-safety: the machine's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

namespace staging::sim {

class PinnedPages {
 public:
  struct Block {
    void* address = nullptr;  // null: the system has no such memory
    std::ptrdiff_t alias_offset = 0;
  };

  Block allocate(std::size_t nbytes);
  // Returns the freed address that leaves quarantine for this one and may now be mapped by
  // anybody, or null.
  void* free(void* address, std::size_t nbytes, std::ptrdiff_t alias_offset);

 private:
  // Up to this size pages are touched at once, as the driver does by pinning them. Beyond,
  // only those that are used cost memory.
  static constexpr std::size_t kPopulated = 16 << 20;
  static constexpr std::size_t kQuarantined = 512;

  std::deque<std::pair<void*, std::size_t>> quarantine_;
};

}  // namespace staging::sim
