// The memory of one simulated device.
//
// Purpose: hands out addresses in a reserved range that the host cannot access, so that a
//   host dereference of a device pointer faults at the line, as it does on a machine with a
//   GPU. The pages are those of an anonymous file that is mapped twice: at its public
//   address without access, and at an alias address where the stand-in reads and writes.
// Owner: a device. Thread-safety: allocate and free under the machine's lock; the mapping
//   itself never moves.
//
// Invariants: the public range and the alias differ by a constant; an address is not handed
//   out again before the cursor has gone once around the reserved range, which is several
//   times the device's capacity.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>

namespace staging::sim {

class Arena {
 public:
  explicit Arena(std::size_t capacity);
  Arena(const Arena&) = delete;  // owns mappings
  Arena& operator=(const Arena&) = delete;
  ~Arena() = delete;  // kept for the process's life: copies may still run at exit

  // Null where `nbytes` (rounded up to pages) is more than is free.
  void* allocate(std::size_t nbytes);
  // `pointer` must be what allocate returned. The pages go back to the system.
  void free(void* pointer);

  bool contains(const void* pointer) const noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    return address - public_ < reserved_;
  }
  // How far the alias of a public address is from it.
  std::ptrdiff_t alias_offset() const noexcept {
    return static_cast<std::ptrdiff_t>(alias_ - public_);
  }
  std::size_t capacity() const noexcept { return capacity_; }
  std::size_t used() const noexcept { return used_; }
  // The part of the public range that has ever been handed out.
  void* public_begin() const noexcept { return reinterpret_cast<void*>(public_); }
  std::size_t touched() const noexcept { return high_water_.load(std::memory_order_relaxed); }

 private:
  std::size_t capacity_;
  std::size_t reserved_;
  int file_ = -1;
  std::uintptr_t public_ = 0;
  std::uintptr_t alias_ = 0;
  std::size_t used_ = 0;
  std::size_t cursor_ = 0;                   // offset at which the next search begins
  std::atomic<std::size_t> high_water_{0};   // offset
  std::map<std::size_t, std::size_t> live_;  // offset -> bytes, rounded to pages
};

// Lets this thread (where the CPU has protection keys) or the process (where it has not)
// access device memory at its public addresses while it lives, for kernels. Nests.
class DeviceAccess {
 public:
  DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;  // counts holders
  DeviceAccess& operator=(const DeviceAccess&) = delete;
  ~DeviceAccess();

  // "pkey" or "mprotect".
  static const char* mechanism() noexcept;
};

}  // namespace staging::sim
