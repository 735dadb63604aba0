#include "sim/page_access.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>

namespace staging::sim {

namespace {

constexpr int kReadWrite = PROT_READ | PROT_WRITE;

std::uintptr_t page_floor(std::uintptr_t address) {
  static const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  return address / page * page;
}
std::uintptr_t page_ceil(std::uintptr_t address) {
  static const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  return (address + page - 1) / page * page;
}

// Ranges of pages that the program made inaccessible or read-only, by their start.
// Invariants: ranges are disjoint, never kReadWrite, and lie in watched pages: the rest of
//   the process (code, guard pages) is none of the device's business.
class ProtectionTable {
 public:
  static ProtectionTable& get() {
    static ProtectionTable& table = *new ProtectionTable;  // outlives static destructors
    return table;
  }

  void watch(std::uintptr_t begin, std::uintptr_t end) {
    const std::lock_guard lock(mutex_);
    watched_.emplace(begin, end);
    watching_.store(true, std::memory_order_release);
  }

  void unwatch(std::uintptr_t begin, std::uintptr_t end) {
    const std::lock_guard lock(mutex_);
    watched_.erase(begin);
    watching_.store(!watched_.empty(), std::memory_order_release);
    clear_locked(begin, end);
    any_.store(!ranges_.empty(), std::memory_order_release);
  }

  void set(std::uintptr_t begin, std::uintptr_t end, int protection) {
    if (!watching_.load(std::memory_order_acquire)) return;
    const std::lock_guard lock(mutex_);
    auto it = watched_.upper_bound(begin);
    if (it != watched_.begin()) --it;
    for (; it != watched_.end() && page_floor(it->first) < end; ++it) {
      const std::uintptr_t first = std::max(begin, page_floor(it->first));
      const std::uintptr_t last = std::min(end, page_ceil(it->second));
      if (first >= last) continue;
      clear_locked(first, last);
      if ((protection & kReadWrite) != kReadWrite) ranges_[first] = {last, protection};
    }
    any_.store(!ranges_.empty(), std::memory_order_release);
  }

  bool allows(std::uintptr_t begin, std::uintptr_t end, int wanted) {
    if (!any_.load(std::memory_order_acquire)) return true;
    const std::lock_guard lock(mutex_);
    auto it = ranges_.upper_bound(begin);
    if (it != ranges_.begin() && std::prev(it)->second.end > begin) --it;
    for (; it != ranges_.end() && it->first < end; ++it) {
      if ((it->second.protection & wanted) != wanted) return false;
    }
    return true;
  }

  void lift() {
    const std::lock_guard lock(mutex_);
    if (lifted_++ == 0) apply_locked(true);
  }

  void restore() {
    const std::lock_guard lock(mutex_);
    if (--lifted_ == 0) apply_locked(false);
  }

 private:
  struct Range {
    std::uintptr_t end;
    int protection;
  };

  void clear_locked(std::uintptr_t begin, std::uintptr_t end) {
    auto it = ranges_.upper_bound(begin);
    if (it != ranges_.begin()) --it;
    while (it != ranges_.end() && it->first < end) {
      const std::uintptr_t first = it->first;
      const Range range = it->second;
      if (range.end <= begin) {
        ++it;
        continue;
      }
      it = ranges_.erase(it);
      if (first < begin) ranges_[first] = {begin, range.protection};
      if (range.end > end) it = ranges_.emplace(end, range).first;
    }
  }

  void apply_locked(bool open) {
    for (const auto& [begin, range] : ranges_) {
      syscall(SYS_mprotect, begin, range.end - begin, open ? kReadWrite : range.protection);
    }
  }

  std::mutex mutex_;
  std::map<std::uintptr_t, std::uintptr_t> watched_;  // LOCK: mutex_; begin to end
  std::map<std::uintptr_t, Range> ranges_;            // LOCK: mutex_
  int lifted_ = 0;                                    // LOCK: mutex_
  std::atomic<bool> watching_{false};                 // mirrors !watched_.empty()
  std::atomic<bool> any_{false};                      // mirrors !ranges_.empty()
};

std::uintptr_t address_of(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

bool reachable(const Place& place, std::size_t nbytes, int wanted) {
  switch (place.access) {
    case Place::Access::kDirect:
      return true;
    case Place::Access::kProtected: {
      const std::uintptr_t begin = address_of(place.address);
      return ProtectionTable::get().allows(begin, begin + nbytes, wanted);
    }
    case Place::Access::kUntrusted:
      return false;
  }
  return false;
}

int own_memory() {
  static const int fd = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
  return fd;
}

bool read_all(void* dst, const void* src, std::size_t nbytes) {
  for (std::size_t done = 0; done < nbytes;) {
    const ssize_t n = pread(own_memory(), static_cast<char*>(dst) + done, nbytes - done,
                            static_cast<off_t>(address_of(src) + done));
    if (n <= 0 && errno != EINTR) return false;
    if (n > 0) done += static_cast<std::size_t>(n);
  }
  return true;
}

bool write_all(void* dst, const void* src, std::size_t nbytes) {
  for (std::size_t done = 0; done < nbytes;) {
    const ssize_t n = pwrite(own_memory(), static_cast<const char*>(src) + done, nbytes - done,
                             static_cast<off_t>(address_of(dst) + done));
    if (n <= 0 && errno != EINTR) return false;
    if (n > 0) done += static_cast<std::size_t>(n);
  }
  return true;
}

}  // namespace

bool move_protected_bytes(Place dst, Place src, std::size_t nbytes) {
  const bool readable = reachable(src, nbytes, PROT_READ);
  const bool writable = reachable(dst, nbytes, PROT_WRITE);
  if (readable && writable) [[likely]] {
    std::memmove(dst.address, src.address, nbytes);
    return true;
  }
  if (readable) return write_all(dst.address, src.address, nbytes);
  if (writable) return read_all(dst.address, src.address, nbytes);
  // Neither side: through a buffer, from the end that an overlap has not overwritten yet.
  constexpr std::size_t kChunk = 64 * 1024;
  static thread_local std::byte chunk[kChunk];
  const bool backwards = address_of(dst.address) > address_of(src.address);
  for (std::size_t done = 0; done < nbytes;) {
    const std::size_t n = nbytes - done < kChunk ? nbytes - done : kChunk;
    const std::size_t at = backwards ? nbytes - done - n : done;
    if (!read_all(chunk, src.address + at, n) || !write_all(dst.address + at, chunk, n)) {
      return false;
    }
    done += n;
  }
  return true;
}

bool fill_bytes(Place dst, unsigned char value, std::size_t nbytes) {
  if (reachable(dst, nbytes, PROT_WRITE)) [[likely]] {
    std::memset(dst.address, value, nbytes);
    return true;
  }
  std::byte chunk[4096];
  std::memset(chunk, value, sizeof chunk);
  for (std::size_t done = 0; done < nbytes;) {
    const std::size_t n = nbytes - done < sizeof chunk ? nbytes - done : sizeof chunk;
    if (!write_all(dst.address + done, chunk, n)) return false;
    done += n;
  }
  return true;
}

ProtectionLifted::ProtectionLifted() {
  ProtectionTable::get().lift();
}
ProtectionLifted::~ProtectionLifted() {
  ProtectionTable::get().restore();
}

void watch_protection(const void* address, std::size_t nbytes) {
  ProtectionTable::get().watch(address_of(address), address_of(address) + nbytes);
}

void unwatch_protection(const void* address, std::size_t nbytes) {
  ProtectionTable::get().unwatch(address_of(address), address_of(address) + nbytes);
}

}  // namespace staging::sim

// Interposed: the call itself, then a note of what it changed. The system call rather than
// libc's function, which has the same name as this one.
extern "C" {

__attribute__((visibility("default"))) int mprotect(void* address, std::size_t nbytes,
                                                    int protection) noexcept {
  const int saved = errno;
  const int rc = static_cast<int>(syscall(SYS_mprotect, address, nbytes, protection));
  if (rc == 0) {
    const auto begin = reinterpret_cast<std::uintptr_t>(address);
    staging::sim::ProtectionTable::get().set(begin, begin + nbytes, protection);
    errno = saved;
  }
  return rc;
}

__attribute__((visibility("default"))) int pkey_mprotect(void* address, std::size_t nbytes,
                                                         int protection, int key) noexcept {
  const int saved = errno;
  const int rc = static_cast<int>(syscall(SYS_pkey_mprotect, address, nbytes, protection, key));
  if (rc == 0) {
    // What a key allows is per thread and changes without a call: treat it as closed.
    const auto begin = reinterpret_cast<std::uintptr_t>(address);
    staging::sim::ProtectionTable::get().set(begin, begin + nbytes,
                                             key > 0 ? PROT_NONE : protection);
    errno = saved;
  }
  return rc;
}
}
