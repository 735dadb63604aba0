// Owns the objects behind CUDA's opaque handles.
//
// Purpose: a handle is the object's address. Memory of a dead object is kept for objects of
//   the same type and is not reused at once, so that a stale handle is recognised instead
//   of being taken for somebody else's.
// Owner: the pool; objects leave it through release(). Thread-safety: the machine's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

namespace staging::sim {

template <typename T>
class HandlePool {
 public:
  template <typename... Args>
  T* create(Args&&... args) {
    Slot* slot = nullptr;
    if (free_.size() > kQuarantine) {
      slot = free_.front();
      free_.pop_front();
    } else {
      slots_.push_back(std::make_unique<Slot>());
      slot = slots_.back().get();
    }
    T* const object = new (slot->bytes) T(std::forward<Args>(args)...);
    slot->tag = &type_tag;
    ++count_;
    return object;
  }

  void release(T* object) {
    Slot* const slot = slot_of(object);
    slot->tag = nullptr;
    --count_;
    object->~T();
    free_.push_back(slot);
  }

  // The object, if `handle` was made by a pool of this type and is alive. A handle that
  // never came from CUDA may fault here, as it may in CUDA.
  static T* find(const void* handle) noexcept {
    constexpr std::uintptr_t kLowest = 4096;  // null and CUDA's special stream handles
    const auto address = reinterpret_cast<std::uintptr_t>(handle);
    if (address < kLowest || address % alignof(Slot) != 0) return nullptr;
    T* const object = static_cast<T*>(const_cast<void*>(handle));
    return slot_of(object)->tag == &type_tag ? object : nullptr;
  }

  std::size_t count() const noexcept { return count_; }

 private:
  static constexpr std::size_t kQuarantine = 256;

  // The tag comes first, so that a handle of another type is told apart by the same read.
  struct alignas(16) Slot {
    const void* tag = nullptr;  // &type_tag while alive
    alignas(16) std::byte bytes[sizeof(T)];
  };

  static Slot* slot_of(T* object) noexcept {
    return reinterpret_cast<Slot*>(reinterpret_cast<std::byte*>(object) - offsetof(Slot, bytes));
  }

  static inline const char type_tag = 0;

  std::vector<std::unique_ptr<Slot>> slots_;
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
