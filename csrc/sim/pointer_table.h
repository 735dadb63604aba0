// Which allocation an address belongs to.
//
// Purpose: what CUDA's unified addressing knows: device memory, memory that cudaHostAlloc
//   made, memory that cudaHostRegister pinned; and, unlike CUDA, what was freed lately.
// Owner: Memory. Thread-safety: the machine's lock.
//
// Invariants: live allocations do not overlap. A freed allocation is remembered until its
//   addresses are handed out again or kRemembered others were freed after it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>

namespace staging::sim {

enum class Space : std::uint8_t { kDevice, kPinned, kRegistered };

struct Allocation {
  std::uintptr_t begin = 0;
  std::size_t nbytes = 0;
  Space space = Space::kDevice;
  bool freed = false;
  int device = -1;                  // whose memory it is, or whose context pinned it
  unsigned flags = 0;               // of cudaHostAlloc or cudaHostRegister
  std::ptrdiff_t alias_offset = 0;  // from `begin` to where the stand-in accesses it
  std::uint64_t id = 0;             // never used twice

  std::uintptr_t end() const noexcept { return begin + nbytes; }
  bool covers(std::uintptr_t address, std::size_t n) const noexcept {
    return address >= begin && address <= end() && n <= end() - address;
  }
};

class PointerTable {
 public:
  Allocation& add(const Allocation& allocation);
  // Keeps it as freed.
  void remove(Allocation& allocation);
  // Of a freed allocation that began at `pointer`: its addresses may now be anybody's.
  void forget(const void* pointer) { freed_.erase(reinterpret_cast<std::uintptr_t>(pointer)); }

  // The live allocation that `pointer` lies in, or null. An empty one covers nothing.
  Allocation* find(const void* pointer) {
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    // Mixed, because allocations begin at round addresses.
    Allocation*& cached = cache_[((address >> 12) * 0x9e3779b97f4a7c15ULL) >> 56];
    if (cached != nullptr && address >= cached->begin && address < cached->end()) [[likely]] {
      return cached;
    }
    Allocation* const found = find_in_map(address);
    if (found != nullptr) cached = found;
    return found;
  }

  // The first live allocation that begins in [begin, end), or null.
  Allocation* first_within(std::uintptr_t begin, std::uintptr_t end);
  // A freed allocation that `pointer` lay in, or null.
  const Allocation* find_freed(const void* pointer) const;

  std::size_t count(Space space) const noexcept { return counts_[static_cast<int>(space)]; }
  std::size_t nbytes(Space space) const noexcept { return nbytes_[static_cast<int>(space)]; }

 private:
  static constexpr std::size_t kRemembered = 4096;

  Allocation* find_in_map(std::uintptr_t address);

  std::map<std::uintptr_t, std::unique_ptr<Allocation>> live_;
  std::map<std::uintptr_t, Allocation> freed_;
  std::deque<std::pair<std::uintptr_t, std::uint64_t>> freed_order_;  // begin, id
  std::array<Allocation*, 256> cache_{};                              // by page
  std::uint64_t next_id_ = 1;
  std::size_t counts_[3] = {};
  std::size_t nbytes_[3] = {};
};

}  // namespace staging::sim
