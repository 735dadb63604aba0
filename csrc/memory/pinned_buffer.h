// One region of pinned host memory.
//
// Purpose: pages from the wanted NUMA node, touched by several threads at once, and then
//   registered with the runtime: one registration a region, exact to the page. (cudaHostAlloc
//   touches its pages on one thread, on whichever node that thread is on.)
// Owner: the buffer. Its destructor unregisters and unmaps, which does not wait for copies:
//   whoever destroys it has made sure that none is in flight.
// Thread-safety: construct and destroy on any thread, once.
//
// Invariants:
//   * data() is aligned to a page, and [data(), data() + mapped_nbytes()) is pinned.
//   * A failure leaves nothing mapped or registered.
//   * Nothing is freed once the context is lost, or in a forked child: a leak is better than
//     memory that a device may still write to, or a call into a driver that is not there.
//   * The mapping is shared, not private: after a fork the parent's pages stay where the
//     device knows them (a private page that the parent writes to is copied away from under
//     the DMA on kernels before 5.9, and all of them are copied in the fork since). A child
//     sees the parent's memory. Huge pages are the exception, see below.
#pragma once

#include <cstddef>
#include <cstdint>

#include "memory/numa.h"
#include "runtime/runtime.h"

namespace staging {

struct PinnedBufferOptions {
  // Where the pages should come from; kAnyNode leaves it to the kernel.
  int numa_node = kAnyNode;
  // Asks for transparent huge pages (fewer entries in the device's page tables, a quicker
  // registration). The mapping is then private and not inherited by forked children, which
  // fault where they touch it: the kernel seldom has huge pages for shared memory.
  bool huge_pages = false;
  // The driver's limit. A region beyond it is registered in parts of half of it.
  std::size_t max_registration_nbytes = std::size_t{512} << 30;
};

class PinnedBuffer {
 public:
  PinnedBuffer() noexcept = default;
  // `device` is whose context registers; the memory is pinned for all of them. Zero bytes
  // make an empty buffer without a call. Throws OutOfMemory or DeviceError.
  PinnedBuffer(Runtime& runtime, int device, std::size_t nbytes,
               const PinnedBufferOptions& options = {});
  PinnedBuffer(const PinnedBuffer&) = delete;  // one owner
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  PinnedBuffer(PinnedBuffer&& other) noexcept;
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept;
  ~PinnedBuffer() { reset(); }

  void* data() const noexcept { return data_; }
  std::byte* bytes() const noexcept { return static_cast<std::byte*>(data_); }
  std::size_t nbytes() const noexcept { return nbytes_; }
  std::size_t mapped_nbytes() const noexcept { return mapped_nbytes_; }
  explicit operator bool() const noexcept { return data_ != nullptr; }

  // The number of bytes from `pointer`, which is inside, up to the end of its registration.
  // A copy may not cross one; it is shorter than the rest only in regions beyond
  // max_registration_nbytes.
  std::size_t registered_from(const void* pointer) const noexcept;

  // Frees it now.
  void reset() noexcept;
  // Gives up the ownership; the memory stays pinned until the process ends.
  void leak() noexcept;

 private:
  enum class Kind : std::uint8_t { kMapped, kAllocated };

  void map_and_register(int device, const PinnedBufferOptions& options);
  void unregister(std::size_t nbytes) noexcept;

  Runtime* runtime_ = nullptr;
  void* data_ = nullptr;
  std::size_t nbytes_ = 0;
  std::size_t mapped_nbytes_ = 0;
  std::size_t registration_nbytes_ = 0;
  Kind kind_ = Kind::kMapped;
};

// The size of a page.
std::size_t page_nbytes() noexcept;
// `nbytes` rounded up to whole pages.
std::size_t page_ceil(std::size_t nbytes) noexcept;

}  // namespace staging
