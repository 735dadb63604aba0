#include "sim/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "sim/reports.h"

namespace staging::sim {

namespace {

std::string hex(const void* pointer) {
  char text[32];
  std::snprintf(text, sizeof text, "%p", pointer);
  return text;
}

// Whether every page of the range exists: what does not cannot be pinned.
bool mapped(std::uintptr_t begin, std::uintptr_t end) {
  static const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const std::uintptr_t first = begin / page * page;
  // Does nothing else on Linux.
  return msync(reinterpret_cast<void*>(first), end - first, MS_ASYNC) == 0;
}

void* pointer_to(std::uintptr_t address) {
  return reinterpret_cast<void*>(address);
}

}  // namespace

Arena& Memory::arena(int device) {
  const auto index = static_cast<std::size_t>(device);
  if (index >= arenas_.size()) arenas_.resize(index + 1);
  if (arenas_[index] == nullptr) arenas_[index] = new Arena(capacity_);
  return *arenas_[index];
}

std::size_t Memory::used(int device) const {
  const auto index = static_cast<std::size_t>(device);
  return index < arenas_.size() && arenas_[index] != nullptr ? arenas_[index]->used() : 0;
}

cudaError_t Memory::allocate_device(int device, std::size_t nbytes, void** out) {
  *out = nullptr;
  if (nbytes == 0) return cudaSuccess;
  void* const pointer = arena(device).allocate(nbytes);
  if (pointer == nullptr) return cudaErrorMemoryAllocation;
  Allocation allocation;
  allocation.begin = reinterpret_cast<std::uintptr_t>(pointer);
  allocation.nbytes = nbytes;
  allocation.space = Space::kDevice;
  allocation.device = device;
  allocation.alias_offset = arena(device).alias_offset();
  table_.add(allocation);
  *out = pointer;
  return cudaSuccess;
}

cudaError_t Memory::allocate_pinned(int device, std::size_t nbytes, unsigned flags, void** out) {
  *out = nullptr;
  if (nbytes == 0) return cudaSuccess;
  const PinnedPages::Block block = pinned_.allocate(nbytes);
  if (block.address == nullptr) return cudaErrorMemoryAllocation;
  Allocation allocation;
  allocation.begin = reinterpret_cast<std::uintptr_t>(block.address);
  allocation.nbytes = nbytes;
  allocation.space = Space::kPinned;
  allocation.device = device;
  allocation.flags = flags;
  allocation.alias_offset = block.alias_offset;
  table_.add(allocation);
  watch_protection(block.address, nbytes);
  *out = block.address;
  return cudaSuccess;
}

cudaError_t Memory::register_host(int device, void* pointer, std::size_t nbytes, unsigned flags) {
  if (pointer == nullptr || nbytes == 0) return cudaErrorInvalidValue;
  const auto begin = reinterpret_cast<std::uintptr_t>(pointer);
  if (begin + nbytes < begin) return cudaErrorInvalidValue;
  const Allocation* const covering = table_.find(pointer);
  if (covering != nullptr || table_.first_within(begin, begin + nbytes) != nullptr) {
    return covering != nullptr && covering->space == Space::kDevice
               ? cudaErrorInvalidValue
               : cudaErrorHostMemoryAlreadyRegistered;
  }
  if (!mapped(begin, begin + nbytes)) return cudaErrorInvalidValue;
  Allocation allocation;
  allocation.begin = begin;
  allocation.nbytes = nbytes;
  allocation.space = Space::kRegistered;
  allocation.device = device;
  allocation.flags = flags;
  table_.add(allocation);
  watch_protection(pointer, nbytes);
  return cudaSuccess;
}

void Memory::free(Allocation& allocation) {
  const Allocation gone = allocation;
  table_.remove(allocation);
  switch (gone.space) {
    case Space::kDevice:
      arena(gone.device).free(pointer_to(gone.begin));
      return;
    case Space::kPinned:
      unwatch_protection(pointer_to(gone.begin), gone.nbytes);
      if (void* const unreserved =
              pinned_.free(pointer_to(gone.begin), gone.nbytes, gone.alias_offset)) {
        table_.forget(unreserved);
      }
      return;
    case Space::kRegistered:
      unwatch_protection(pointer_to(gone.begin), gone.nbytes);
      return;
  }
}

Allocation* Memory::starting_at(const void* pointer, Space space) {
  Allocation* const found = table_.find(pointer);
  if (found == nullptr || found->space != space) return nullptr;
  return found->begin == reinterpret_cast<std::uintptr_t>(pointer) ? found : nullptr;
}

cudaError_t Memory::resolve(const void* pointer, std::size_t nbytes, Range* out) {
  const auto begin = reinterpret_cast<std::uintptr_t>(pointer);
  auto* const address = static_cast<std::byte*>(const_cast<void*>(pointer));
  out->address = address;
  out->nbytes = nbytes;
  if (const Allocation* const found = table_.find(pointer)) [[likely]] {
    if (!found->covers(begin, nbytes)) return cudaErrorInvalidValue;
    out->allocation = found->id;
    out->device = found->device;
    out->kind = found->space == Space::kDevice ? Range::Kind::kDevice : Range::Kind::kPinned;
    out->place = {address + found->alias_offset, found->space == Space::kRegistered
                                                     ? Place::Access::kProtected
                                                     : Place::Access::kDirect};
    return cudaSuccess;
  }
  if (pointer == nullptr || begin + nbytes < begin) return cudaErrorInvalidValue;
  if (table_.find_freed(pointer) != nullptr) {
    Reports::get().add("use-after-free", "a copy of " + std::to_string(nbytes) +
                                             " bytes uses freed memory at " + hex(pointer));
    return cudaErrorInvalidValue;
  }
  for (const Arena* arena : arenas_) {
    if (arena != nullptr && arena->contains(pointer)) return cudaErrorInvalidValue;
  }
  if (table_.first_within(begin, begin + nbytes) != nullptr) return cudaErrorInvalidValue;
  out->kind = Range::Kind::kPageable;
  out->device = -1;
  out->allocation = 0;
  out->place = {address, Place::Access::kDirect};
  return cudaSuccess;
}

bool Memory::still_there(const Range& range) {
  if (range.kind == Range::Kind::kPageable) return true;
  const Allocation* const found = table_.find(range.address);
  return found != nullptr && found->id == range.allocation;
}

}  // namespace staging::sim
