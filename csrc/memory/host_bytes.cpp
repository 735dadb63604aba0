#include "memory/host_bytes.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

#include "memory/pinned_buffer.h"

namespace staging {

namespace {

constexpr std::size_t kHugePageNbytes = std::size_t{2} << 20;

}  // namespace

HostBytes::HostBytes(std::size_t nbytes) : nbytes_(nbytes) {
  if (nbytes == 0) return;
  if (nbytes < kMappedNbytes) {
    data_ = static_cast<std::byte*>(::operator new(nbytes));
    return;
  }
  if (nbytes > SIZE_MAX / 2) throw std::bad_alloc();
  // Some more, so that it can begin where a huge page does.
  const std::size_t needed = page_ceil(nbytes);
  const std::size_t mapped = needed + kHugePageNbytes;
  void* const begin =
      mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (begin == MAP_FAILED) throw std::bad_alloc();
  std::byte* const first = static_cast<std::byte*>(begin);
  const std::size_t address = reinterpret_cast<std::uintptr_t>(begin);
  const std::size_t before = (kHugePageNbytes - address % kHugePageNbytes) % kHugePageNbytes;
  data_ = first + before;
  if (before > 0) munmap(first, before);
  munmap(data_ + needed, kHugePageNbytes - before);
  // Advice: where there are none, small pages do.
  madvise(data_, needed, MADV_HUGEPAGE);
}

HostBytes::~HostBytes() {
  if (data_ == nullptr) return;
  if (nbytes_ < kMappedNbytes) {
    ::operator delete(data_);
  } else {
    munmap(data_, page_ceil(nbytes_));
  }
}

}  // namespace staging
