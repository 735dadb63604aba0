#include "sim/pinned_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

namespace staging::sim {

namespace {

std::size_t to_pages(std::size_t nbytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return (nbytes + page - 1) / page * page;
}

std::size_t machine_nbytes() {
  static const std::size_t nbytes = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) *
                                    static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return nbytes;
}

}  // namespace

PinnedPages::Block PinnedPages::allocate(std::size_t nbytes) {
  // More than the machine has cannot be pinned; mapping it would succeed all the same.
  if (nbytes > machine_nbytes()) return {};
  const std::size_t size = to_pages(nbytes);
  const int file = memfd_create("simulated pinned memory", MFD_CLOEXEC);
  if (file < 0) return {};
  Block block;
  if (ftruncate(file, static_cast<off_t>(size)) == 0) {
    const int flags = MAP_SHARED | MAP_NORESERVE | (size <= kPopulated ? MAP_POPULATE : 0);
    void* const address = mmap(nullptr, size, PROT_READ | PROT_WRITE, flags, file, 0);
    void* const alias = mmap(nullptr, size, PROT_READ | PROT_WRITE, flags, file, 0);
    if (address != MAP_FAILED && alias != MAP_FAILED) {
      block = {address, static_cast<std::byte*>(alias) - static_cast<std::byte*>(address)};
    } else {
      if (address != MAP_FAILED) munmap(address, size);
      if (alias != MAP_FAILED) munmap(alias, size);
    }
  }
  close(file);
  return block;
}

void* PinnedPages::free(void* address, std::size_t nbytes, std::ptrdiff_t alias_offset) {
  const std::size_t size = to_pages(nbytes);
  munmap(static_cast<std::byte*>(address) + alias_offset, size);
  // Replaced in one step, so that nobody else's mapping can come in between.
  void* const reserved = mmap(address, size, PROT_NONE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  if (reserved == MAP_FAILED) {
    munmap(address, size);
    return address;
  }
  quarantine_.emplace_back(address, size);
  if (quarantine_.size() <= kQuarantined) return nullptr;
  const auto [oldest, oldest_size] = quarantine_.front();
  quarantine_.pop_front();
  munmap(oldest, oldest_size);
  return oldest;
}

}  // namespace staging::sim
