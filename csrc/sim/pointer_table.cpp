#include "sim/pointer_table.h"

#include <algorithm>

namespace staging::sim {

Allocation& PointerTable::add(const Allocation& allocation) {
  // Memories of what was here before are no longer true.
  auto old = freed_.upper_bound(allocation.begin);
  if (old != freed_.begin() && std::prev(old)->second.end() > allocation.begin) --old;
  while (old != freed_.end() && old->first < allocation.end()) old = freed_.erase(old);

  auto owned = std::make_unique<Allocation>(allocation);
  owned->id = next_id_++;
  Allocation& result = *owned;
  live_[allocation.begin] = std::move(owned);
  ++counts_[static_cast<int>(result.space)];
  nbytes_[static_cast<int>(result.space)] += result.nbytes;
  return result;
}

void PointerTable::remove(Allocation& allocation) {
  std::replace(cache_.begin(), cache_.end(), &allocation, static_cast<Allocation*>(nullptr));
  --counts_[static_cast<int>(allocation.space)];
  nbytes_[static_cast<int>(allocation.space)] -= allocation.nbytes;
  // Registered memory stays the program's and may well be used as pageable memory.
  if (allocation.space != Space::kRegistered) {
    Allocation& kept = freed_[allocation.begin] = allocation;
    kept.freed = true;
    freed_order_.emplace_back(kept.begin, kept.id);
    if (freed_order_.size() > kRemembered) {
      const auto [begin, id] = freed_order_.front();
      freed_order_.pop_front();
      if (const auto it = freed_.find(begin); it != freed_.end() && it->second.id == id) {
        freed_.erase(it);
      }
    }
  }
  live_.erase(allocation.begin);
}

Allocation* PointerTable::find_in_map(std::uintptr_t address) {
  auto it = live_.upper_bound(address);
  if (it == live_.begin()) return nullptr;
  Allocation& candidate = *std::prev(it)->second;
  return address < candidate.end() ? &candidate : nullptr;
}

Allocation* PointerTable::first_within(std::uintptr_t begin, std::uintptr_t end) {
  const auto it = live_.lower_bound(begin);
  return it != live_.end() && it->first < end ? it->second.get() : nullptr;
}

const Allocation* PointerTable::find_freed(const void* pointer) const {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  auto it = freed_.upper_bound(address);
  if (it == freed_.begin()) return nullptr;
  const Allocation& candidate = std::prev(it)->second;
  return address < candidate.end() ? &candidate : nullptr;
}

}  // namespace staging::sim
