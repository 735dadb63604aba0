// Reaches host memory as DMA does: past the protection of its pages.
//
// Purpose: pinned memory of the stand-in has an alias mapping (host_memory.h), but memory
//   that the program itself mapped and registered has none. It is accessed directly while
//   its pages allow that, which is almost always, and else through /proc/self/mem. To know
//   which, the stand-in interposes mprotect and pkey_mprotect. A protection set behind
//   their back (a raw system call) is not seen: the access then faults in the stand-in.
// Owner: the process. Thread-safety: safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace staging::sim {

// Where a copy reads or writes.
struct Place {
  enum class Access : std::uint8_t {
    kDirect,     // always accessible: an alias mapping, or memory of the stand-in
    kProtected,  // the program's own pages: look at their protection first
    kUntrusted,  // may be unmapped by the time of the access: always /proc/self/mem
  };
  std::byte* address = nullptr;
  Access access = Access::kDirect;

  Place at(std::size_t offset) const noexcept { return {address + offset, access}; }
};

// Moves bytes; the ranges may overlap. False where a page is not mapped: bytes may then
// have moved in part.
bool move_protected_bytes(Place dst, Place src, std::size_t nbytes);
bool fill_bytes(Place dst, unsigned char value, std::size_t nbytes);

inline bool move_bytes(Place dst, Place src, std::size_t nbytes) {
  if (dst.access == Place::Access::kDirect && src.access == Place::Access::kDirect) [[likely]] {
    std::memmove(dst.address, src.address, nbytes);
    return true;
  }
  return move_protected_bytes(dst, src, nbytes);
}

// Makes every page that the program protected accessible while it lives, for kernels, which
// access pinned memory at its own address. Nests and may be held by several threads.
class ProtectionLifted {
 public:
  ProtectionLifted();
  ProtectionLifted(const ProtectionLifted&) = delete;  // counts holders
  ProtectionLifted& operator=(const ProtectionLifted&) = delete;
  ~ProtectionLifted();
};

// Notes changes of protection in these pages, from now on. For pinned and registered memory.
void watch_protection(const void* address, std::size_t nbytes);
void unwatch_protection(const void* address, std::size_t nbytes);

}  // namespace staging::sim
