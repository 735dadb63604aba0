#include "sim/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <vector>

namespace staging::sim {

namespace {

// Of the capacity: how much address space a device reserves.
constexpr std::size_t kReservedFactor = 4;

std::size_t page_nbytes() {
  static const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return page;
}

std::size_t round_up(std::size_t n, std::size_t to) {
  return (n + to - 1) / to * to;
}

[[noreturn]] void die(const char* what) {
  std::perror(what);
  std::abort();
}

// Opens and closes the public ranges of all arenas.
class AccessControl {
 public:
  static AccessControl& get() {
    static AccessControl& control = *new AccessControl;  // outlives static destructors
    return control;
  }

  int key() const noexcept { return key_; }

  void add(const Arena& arena) {
    const std::lock_guard lock(mutex_);
    arenas_.push_back(&arena);
  }

  void open() {
    if (key_ > 0) {
      if (thread_depth_++ == 0) pkey_set(key_, 0);
      return;
    }
    const std::lock_guard lock(mutex_);
    if (depth_++ == 0) protect_locked(PROT_READ | PROT_WRITE);
  }

  void close() {
    if (key_ > 0) {
      if (--thread_depth_ == 0) pkey_set(key_, PKEY_DISABLE_ACCESS);
      return;
    }
    const std::lock_guard lock(mutex_);
    if (--depth_ == 0) protect_locked(PROT_NONE);
  }

 private:
  // Every thread starts without access through a fresh key (Linux's initial PKRU).
  AccessControl() : key_(pkey_alloc(0, PKEY_DISABLE_ACCESS)) {}

  void protect_locked(int protection) {
    for (const Arena* arena : arenas_) {
      if (arena->touched() == 0) continue;
      // The system call: the stand-in's own mprotect takes notes of the program's.
      if (syscall(SYS_mprotect, arena->public_begin(), arena->touched(), protection) != 0) {
        die("simulated device: mprotect of device memory");
      }
    }
  }

  const int key_;  // -1: the CPU or the kernel has no protection keys
  static inline thread_local int thread_depth_ = 0;
  std::mutex mutex_;
  std::vector<const Arena*> arenas_;  // LOCK: mutex_
  int depth_ = 0;                     // LOCK: mutex_
};

}  // namespace

Arena::Arena(std::size_t capacity)
    : capacity_(round_up(capacity, page_nbytes())), reserved_(capacity_ * kReservedFactor) {
  file_ = memfd_create("simulated device memory", MFD_CLOEXEC);
  if (file_ < 0 || ftruncate(file_, static_cast<off_t>(reserved_)) != 0) {
    die("simulated device: reserving device memory");
  }
  void* const alias =
      mmap(nullptr, reserved_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file_, 0);
  void* const shown = mmap(nullptr, reserved_, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file_, 0);
  if (alias == MAP_FAILED || shown == MAP_FAILED) die("simulated device: mapping device memory");
  // A forked child has no device; without the mapping it cannot write into its parent's.
  madvise(alias, reserved_, MADV_DONTFORK);
  madvise(shown, reserved_, MADV_DONTFORK);
  madvise(alias, reserved_, MADV_DONTDUMP);
  madvise(shown, reserved_, MADV_DONTDUMP);
  alias_ = reinterpret_cast<std::uintptr_t>(alias);
  public_ = reinterpret_cast<std::uintptr_t>(shown);
  AccessControl& control = AccessControl::get();
  if (control.key() > 0 &&
      pkey_mprotect(shown, reserved_, PROT_READ | PROT_WRITE, control.key()) != 0) {
    die("simulated device: pkey_mprotect of device memory");
  }
  control.add(*this);
}

void* Arena::allocate(std::size_t nbytes) {
  const std::size_t rounded = round_up(std::max<std::size_t>(nbytes, 1), page_nbytes());
  if (rounded < nbytes || rounded > capacity_ - used_) return nullptr;
  // First gap at or after the cursor, then from the start. One exists: what is live is at
  // most a quarter of the range... unless it is cut into very many pieces.
  for (std::size_t from : {cursor_, std::size_t{0}}) {
    auto next = live_.lower_bound(from);
    if (next != live_.begin()) {
      const auto previous = std::prev(next);
      from = std::max(from, previous->first + previous->second);
    }
    for (;; ++next) {
      const std::size_t limit = next == live_.end() ? reserved_ : next->first;
      if (limit >= from && limit - from >= rounded) {
        live_.emplace_hint(next, from, rounded);
        used_ += rounded;
        cursor_ = from + rounded;
        high_water_.store(std::max(touched(), cursor_), std::memory_order_relaxed);
        return reinterpret_cast<void*>(public_ + from);
      }
      if (next == live_.end()) break;
      from = next->first + next->second;
    }
  }
  return nullptr;
}

void Arena::free(void* pointer) {
  const auto it = live_.find(reinterpret_cast<std::uintptr_t>(pointer) - public_);
  if (it == live_.end()) std::abort();  // the pointer table admits what allocate returned
  if (fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(it->first),
                static_cast<off_t>(it->second)) != 0) {
    die("simulated device: returning device memory");
  }
  used_ -= it->second;
  live_.erase(it);
}

DeviceAccess::DeviceAccess() {
  AccessControl::get().open();
}
DeviceAccess::~DeviceAccess() {
  AccessControl::get().close();
}

const char* DeviceAccess::mechanism() noexcept {
  return AccessControl::get().key() > 0 ? "pkey" : "mprotect";
}

}  // namespace staging::sim
