#include "memory/pinned_buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "support/error.h"
#include "support/log.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; older kernels answer EINVAL
#endif

namespace staging {

namespace {

constexpr int kErrorNotSupported = 801;  // cudaErrorNotSupported

// Below this a thread's start is not worth it.
constexpr std::size_t kNbytesPerThread = std::size_t{32} << 20;
constexpr std::size_t kMaxThreads = 8;

[[noreturn]] void throw_out_of_memory(const char* call, std::size_t nbytes, int error) {
  throw OutOfMemory(
      call, error, error == ENOMEM ? "ENOMEM" : "errno",
      "cannot map " + std::to_string(nbytes) + " bytes to pin: " + std::strerror(error),
      /*sticky=*/false);
}

// Makes the pages present. Returns an errno.
int touch(std::byte* begin, std::size_t nbytes) noexcept {
  if (nbytes == 0) return 0;
  while (madvise(begin, nbytes, MADV_POPULATE_WRITE) != 0) {
    if (errno == EINTR || errno == EAGAIN) continue;
    if (errno != EINVAL) return errno;  // no memory: better here than a SIGBUS below
    for (std::size_t offset = 0; offset < nbytes; offset += page_nbytes()) {
      const_cast<volatile std::byte*>(begin)[offset] = std::byte{0};
    }
    break;
  }
  return 0;
}

// The same by several threads, each a part of its own.
int touch_in_parallel(std::byte* begin, std::size_t nbytes) {
  const std::size_t cores = std::max(1U, std::thread::hardware_concurrency());
  const std::size_t count =
      std::clamp<std::size_t>(nbytes / kNbytesPerThread, 1, std::min(cores, kMaxThreads));
  const std::size_t part = page_ceil(nbytes / count);
  std::vector<int> errors(count, 0);
  std::vector<std::thread> threads;
  const auto touch_part = [&](std::size_t index) noexcept {
    const std::size_t first = std::min(nbytes, index * part);
    errors[index] = touch(begin + first, std::min(part, nbytes - first));
  };
  std::size_t started = 1;
  try {
    threads.reserve(count);
    for (; started < count; ++started) threads.emplace_back(touch_part, started);
  } catch (const std::system_error&) {  // no more threads: this one does the rest
  }
  touch_part(0);
  for (std::size_t index = started; index < count; ++index) touch_part(index);
  for (std::thread& thread : threads) thread.join();
  for (const int error : errors) {
    if (error != 0) return error;
  }
  return 0;
}

}  // namespace

std::size_t page_nbytes() noexcept {
  static const auto nbytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return nbytes;
}

std::size_t page_ceil(std::size_t nbytes) noexcept {
  const std::size_t mask = page_nbytes() - 1;
  return (nbytes + mask) & ~mask;
}

PinnedBuffer::PinnedBuffer(Runtime& runtime, int device, std::size_t nbytes,
                           const PinnedBufferOptions& options)
    : runtime_(&runtime), nbytes_(nbytes) {
  if (nbytes == 0) return;
  if (nbytes > SIZE_MAX - page_nbytes()) throw_out_of_memory("mmap", nbytes, ENOMEM);
  mapped_nbytes_ = page_ceil(nbytes);
  try {
    map_and_register(device, options);
  } catch (const DeviceError& error) {
    if (error.code() != kErrorNotSupported) throw;
    // Some devices cannot register memory (cudaDevAttrHostRegisterSupported is 0). The one
    // fallback: the driver's own allocator, which places the pages itself.
    static std::atomic_flag said;
    log_once(said,
             "this device cannot register host memory: pinned memory comes from cudaHostAlloc, "
             "which ignores the NUMA node and huge pages that were asked for");
    data_ = runtime.allocate_pinned(device, mapped_nbytes_);
    registration_nbytes_ = mapped_nbytes_;
    kind_ = Kind::kAllocated;
  }
}

void PinnedBuffer::map_and_register(int device, const PinnedBufferOptions& options) {
  // The host backend has no DMA to protect: its memory is copied by a fork as any other.
  const bool is_private = options.huge_pages || runtime_->backend() == Backend::kHost;
  const int sharing = is_private ? MAP_PRIVATE : MAP_SHARED;
  void* begin =
      mmap(nullptr, mapped_nbytes_, PROT_READ | PROT_WRITE, sharing | MAP_ANONYMOUS, -1, 0);
  if (begin == MAP_FAILED) throw_out_of_memory("mmap", mapped_nbytes_, errno);
  std::size_t registered = 0;
  try {
    if (options.huge_pages) {
      // Advice: a kernel without huge pages declines, and small ones do.
      madvise(begin, mapped_nbytes_, MADV_HUGEPAGE);
      madvise(begin, mapped_nbytes_, MADV_DONTFORK);
    }
    if (options.numa_node != kAnyNode) prefer_node(begin, mapped_nbytes_, options.numa_node);
    const int error = touch_in_parallel(static_cast<std::byte*>(begin), mapped_nbytes_);
    if (error != 0) throw_out_of_memory("madvise", mapped_nbytes_, error);

    registration_nbytes_ = mapped_nbytes_;
    if (mapped_nbytes_ > options.max_registration_nbytes) {
      registration_nbytes_ =
          std::max(page_nbytes(), page_ceil(options.max_registration_nbytes / 2));
    }
    data_ = begin;
    while (registered < mapped_nbytes_) {
      const std::size_t part = std::min(registration_nbytes_, mapped_nbytes_ - registered);
      runtime_->register_pinned(device, bytes() + registered, part);
      registered += part;
    }
  } catch (...) {
    unregister(registered);
    munmap(begin, mapped_nbytes_);
    data_ = nullptr;
    throw;
  }
}

PinnedBuffer::PinnedBuffer(PinnedBuffer&& other) noexcept
    : runtime_(other.runtime_),
      data_(std::exchange(other.data_, nullptr)),
      nbytes_(std::exchange(other.nbytes_, 0)),
      mapped_nbytes_(std::exchange(other.mapped_nbytes_, 0)),
      registration_nbytes_(other.registration_nbytes_),
      kind_(other.kind_) {}

PinnedBuffer& PinnedBuffer::operator=(PinnedBuffer&& other) noexcept {
  if (this == &other) return *this;
  reset();
  runtime_ = other.runtime_;
  data_ = std::exchange(other.data_, nullptr);
  nbytes_ = std::exchange(other.nbytes_, 0);
  mapped_nbytes_ = std::exchange(other.mapped_nbytes_, 0);
  registration_nbytes_ = other.registration_nbytes_;
  kind_ = other.kind_;
  return *this;
}

std::size_t PinnedBuffer::registered_from(const void* pointer) const noexcept {
  const auto offset = static_cast<std::size_t>(static_cast<const std::byte*>(pointer) - bytes());
  const std::size_t seam = (offset / registration_nbytes_ + 1) * registration_nbytes_;
  return std::min(seam, mapped_nbytes_) - offset;
}

void PinnedBuffer::unregister(std::size_t nbytes) noexcept {
  for (std::size_t offset = 0; offset < nbytes; offset += registration_nbytes_) {
    runtime_->unregister_pinned(bytes() + offset);
  }
}

void PinnedBuffer::reset() noexcept {
  if (data_ == nullptr) return;
  if (Runtime::forked() || runtime_->context_lost()) return leak();
  if (kind_ == Kind::kAllocated) {
    runtime_->free_pinned(data_);
  } else {
    unregister(mapped_nbytes_);
    munmap(data_, mapped_nbytes_);
  }
  leak();
}

void PinnedBuffer::leak() noexcept {
  data_ = nullptr;
  nbytes_ = mapped_nbytes_ = 0;
}

}  // namespace staging
