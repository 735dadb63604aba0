// Owns the objects behind CUDA's opaque handles.
//
// Purpose: a handle is the object's address. Objects of one type live in one reserved range
//   of addresses, and memory of a dead object is kept for objects of the same type and not
//   reused at once, so that a stale handle, one of another type and one that never was a
//   handle are all recognised.
// Owner: the pool; there is one for each type, and objects leave it through release().
// Thread-safety: the machine's lock.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <new>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

namespace staging::sim {

template <typename T>
class HandlePool {
 public:
  HandlePool() {
    // Only what is used costs memory.
    void* const range = mmap(nullptr, kReserved, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) fail("cannot reserve memory for handles");
    slots_ = static_cast<Slot*>(range);
#if defined(__SANITIZE_ADDRESS__)
    __lsan_register_root_region(range, kReserved);  // objects own memory of the heap
#endif
  }
  HandlePool(const HandlePool&) = delete;  // one for each type
  HandlePool& operator=(const HandlePool&) = delete;

  template <typename... Args>
  T* create(Args&&... args) {
    Slot* slot = nullptr;
    if (free_.size() > kQuarantine) {
      slot = free_.front();
      free_.pop_front();
    } else {
      if (used_ == kReserved / sizeof(Slot)) fail("too many handles are alive");
      slot = &slots_[used_++];
    }
    T* const object = new (slot->bytes) T(std::forward<Args>(args)...);
    slot->alive = true;
    ++count_;
    return object;
  }

  void release(T* object) {
    Slot* const slot = reinterpret_cast<Slot*>(object);
    slot->alive = false;
    --count_;
    object->~T();
    free_.push_back(slot);
  }

  // The object, if `handle` was made by this type's pool and is alive; any value may be asked.
  static T* find(const void* handle) noexcept {
    const std::uintptr_t offset =
        reinterpret_cast<std::uintptr_t>(handle) - reinterpret_cast<std::uintptr_t>(slots_);
    if (offset >= used_ * sizeof(Slot) || offset % sizeof(Slot) != 0) return nullptr;
    Slot& slot = slots_[offset / sizeof(Slot)];
    return slot.alive ? std::launder(reinterpret_cast<T*>(slot.bytes)) : nullptr;
  }

  std::size_t count() const noexcept { return count_; }

 private:
#if defined(__SANITIZE_ADDRESS__)
  static constexpr std::size_t kReserved = 16 << 20;  // bytes; the leak check reads them all
#else
  static constexpr std::size_t kReserved = 1ULL << 30;  // bytes
#endif
  static constexpr std::size_t kQuarantine = 256;

  struct alignas(16) Slot {
    alignas(16) std::byte bytes[sizeof(T)];
    bool alive;  // false in fresh memory
  };

  [[noreturn]] static void fail(const char* what) {
    std::fprintf(stderr, "simulated device: %s\n", what);
    std::abort();
  }

  static inline Slot* slots_ = nullptr;
  static inline std::size_t used_ = 0;
  std::deque<Slot*> free_;
  std::size_t count_ = 0;
};

// Counts references to an object of a pool; `T::unreferenced(T*)` runs at zero.
template <typename T>
class Ref {
 public:
  Ref() noexcept = default;
  explicit Ref(T* object) noexcept : object_(object) {
    if (object_ != nullptr) ++object_->references;
  }
  Ref(const Ref& other) noexcept : Ref(other.object_) {}
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() {
    if (object_ != nullptr && --object_->references == 0) T::unreferenced(object_);
  }

  T* get() const noexcept { return object_; }
  T* operator->() const noexcept { return object_; }
  T& operator*() const noexcept { return *object_; }
  explicit operator bool() const noexcept { return object_ != nullptr; }

 private:
  T* object_ = nullptr;
};

}  // namespace staging::sim
