#include "torch_ops/host_allocator.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/CachingHostAllocator.h>
#include <c10/util/Exception.h>
#include <torch/headeronly/version.h>

#include <atomic>
#include <map>
#include <mutex>
#include <utility>

#include "memory/pinned_pool.h"
#include "support/error.h"
#include "support/interrupt.h"

#if defined(STAGING_WITH_CUDA)
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

// Recording of allocation histories came with 2.14.
#define STAGING_TORCH_HAS_HOST_HISTORY \
  (TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 14))

namespace staging::torch_ops {

namespace {

std::atomic<bool> owner{false};
std::atomic<ThrowInterrupt> throw_interrupt{nullptr};

// Looked up once: every non-blocking copy of PyTorch's asks it.
PinnedPool& pool() {
  static PinnedPool& of_process = PinnedPool::get(Runtime::get());
  return of_process;
}

// The device whose context registers memory: one that has a context, so that pinning makes
// none where nobody wanted it.
int device_with_context(int device) {
#if defined(STAGING_WITH_CUDA)
  if (device < 0) {
    const c10::DeviceIndex current = c10::cuda::current_device();
    if (c10::cuda::hasPrimaryContext(current)) return current;
    return c10::cuda::getDeviceIndexWithPrimaryContext().value_or(current);
  }
#endif
  return device;
}

PinnedBlock allocate_near(std::size_t nbytes, int device, int numa_node) {
  PinnedPool& from = pool();
#if defined(STAGING_WITH_CUDA)
  // PyTorch's guard: it can go back to a device that has no context without making one.
  std::optional<c10::cuda::CUDAGuard> guard;
  if (from.runtime().backend() == Backend::kCuda && !from.runtime().context_lost()) {
    device = device_with_context(device);
    guard.emplace(static_cast<c10::DeviceIndex>(device));
  }
#endif
  return numa_node == kAnyNode ? from.allocate(nbytes, device)
                               : from.allocate_on_node(nbytes, device, numa_node);
}

void release_block(void* block) {
  PinnedBlock::attach(block).release();
}

at::DataPtr allocate_block(std::size_t nbytes, int device, int numa_node) {
  try {
    PinnedBlock block = allocate_near(nbytes, device, numa_node);
    void* data = block.data();
    return {data, block.detach(), &release_block, c10::Device(c10::DeviceType::CPU)};
  } catch (const Interrupted&) {
    const ThrowInterrupt raise = throw_interrupt.load();
    if (raise != nullptr) raise();
    throw StateError("interrupted while waiting for pinned memory");
  }
}

// Serves the storages of pinned_empty, also when they are resized.
class PoolAllocator final : public c10::Allocator {
 public:
  PoolAllocator(int device, int numa_node) noexcept : device_(device), numa_node_(numa_node) {}

  at::DataPtr allocate(std::size_t nbytes) override {
    return allocate_block(nbytes, device_, numa_node_);
  }
  void copy_data(void* dst, const void* src, std::size_t nbytes) const override {
    default_copy_data(dst, src, nbytes);
  }

  // One for each pair, never destroyed: storages refer to it.
  static PoolAllocator& of(int device, int numa_node) {
    static auto* const mutex = new std::mutex();
    static auto* const made = new std::map<std::pair<int, int>, PoolAllocator*>();
    const std::lock_guard<std::mutex> lock(*mutex);
    PoolAllocator*& allocator = (*made)[{device, numa_node}];
    if (allocator == nullptr) allocator = new PoolAllocator(device, numa_node);
    return *allocator;
  }

 private:
  const int device_;
  const int numa_node_;
};

std::optional<StreamRef> raw_stream([[maybe_unused]] c10::Stream stream) {
#if defined(STAGING_WITH_CUDA)
  if (stream.device_type() == c10::DeviceType::CUDA) {
    const c10::cuda::CUDAStream cuda(c10::cuda::CUDAStream::UNCHECKED, stream);
    return StreamRef{stream.device_index(), cuda.stream()};
  }
#endif
  return std::nullopt;
}

// Registered with PyTorch in front of the allocator that was.
class WatchingAllocator final : public at::HostAllocator {
 public:
  explicit WatchingAllocator(at::HostAllocator* previous) noexcept : previous_(previous) {}

  at::DataPtr allocate(std::size_t nbytes) override {
    if (!owner.load(std::memory_order_relaxed)) return previous_->allocate(nbytes);
    try {
      return allocate_block(nbytes, /*device=*/-1, kAnyNode);
    } catch (const OutOfMemory& error) {
      TORCH_CHECK_WITH(OutOfMemoryError, false, error.what());
    }
  }
  c10::DeleterFnPtr raw_deleter() const override { return previous_->raw_deleter(); }
  void copy_data(void* dst, const void* src, std::size_t nbytes) const override {
    default_copy_data(dst, src, nbytes);
  }

  bool record_event(void* pointer, void* context, c10::Stream stream) override {
    const std::optional<StreamRef> ref = raw_stream(stream);
    if (ref && pool().record_use(pointer, *ref)) return true;
    return previous_->record_event(pointer, context, stream);
  }

  void empty_cache() override {
    previous_->empty_cache();
    pool().trim();
  }

  // PyTorch's figures and, where the pool serves its allocations, the pool's.
  at::HostStats get_stats() override {
    at::HostStats stats = previous_->get_stats();
    if (!owner.load(std::memory_order_relaxed)) return stats;
    const PinnedStats ours = pool().stats();
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto add = [](auto& stat, std::size_t current, std::size_t peak, std::uint64_t allocated,
                        std::uint64_t freed) {
      stat.current += static_cast<std::int64_t>(current);
      stat.peak += static_cast<std::int64_t>(peak);
      stat.allocated += static_cast<std::int64_t>(allocated);
      stat.freed += static_cast<std::int64_t>(freed);
    };
    const std::uint64_t allocations = ours.allocations - base_.allocations;
    const std::uint64_t pinnings = ours.pinnings - base_.pinnings;
    const std::uint64_t unpinnings = ours.unpinnings - base_.unpinnings;
    add(stats.active_requests, ours.count, ours.count, allocations,
        allocations - std::min<std::uint64_t>(allocations, ours.count));
    add(stats.active_bytes, ours.in_use_nbytes, ours.peak_in_use_nbytes, 0, 0);
    add(stats.allocations, ours.regions, ours.regions, pinnings, unpinnings);
    add(stats.allocated_bytes, ours.allocated_nbytes, ours.peak_nbytes, 0, 0);
    stats.num_host_alloc += static_cast<std::int64_t>(pinnings);
    stats.num_host_free += static_cast<std::int64_t>(unpinnings);
    return stats;
  }
  void reset_accumulated_stats() override {
    previous_->reset_accumulated_stats();
    const PinnedStats ours = pool().stats();
    const std::lock_guard<std::mutex> lock(mutex_);
    base_ = ours;
  }
  void reset_peak_stats() override {
    previous_->reset_peak_stats();
    pool().reset_peak();
  }

  // Pools of a graph capture. PyTorch's allocator keeps its blocks apart for a graph; the
  // pool's are retained by the graph itself once a captured copy uses them. Handed on in both
  // cases, so that the allocator before sees every begin with its end.
  void begin_allocate_to_pool(c10::MempoolId_t id,
                              std::function<bool(c10::Stream)> filter) override {
    previous_->begin_allocate_to_pool(id, std::move(filter));
  }
  void end_allocate_to_pool(c10::MempoolId_t id) override { previous_->end_allocate_to_pool(id); }
  void release_pool(c10::MempoolId_t id) override { previous_->release_pool(id); }

#if STAGING_TORCH_HAS_HOST_HISTORY
  // Histories are of the allocator before; blocks of the pool do not appear in them.
  void record_history(bool enabled, c10::CachingDeviceAllocator::CreateContextFn recorder,
                      std::size_t max_entries, c10::CachingDeviceAllocator::RecordContext when,
                      bool clear) override {
    previous_->record_history(enabled, recorder, max_entries, when, clear);
  }
  bool is_history_enabled() const override { return previous_->is_history_enabled(); }
  std::vector<at::HostSegmentInfo> get_segments() override { return previous_->get_segments(); }
  std::vector<c10::CachingDeviceAllocator::TraceEntry> get_traces() override {
    return previous_->get_traces();
  }
  void record_external_register(void* pointer, std::size_t nbytes) override {
    previous_->record_external_register(pointer, nbytes);
  }
  void record_external_unregister(void* pointer) override {
    previous_->record_external_unregister(pointer);
  }
#endif

 private:
  at::HostAllocator* const previous_;  // lives as long as the process
  std::mutex mutex_;
  PinnedStats base_;  // counts before the last reset; guarded by mutex_
};

}  // namespace

void watch_copies() {
  static auto* const mutex = new std::mutex();
  static at::HostAllocator* ours = nullptr;
  if (Runtime::get().backend() == Backend::kHost) return;
  const std::lock_guard<std::mutex> lock(*mutex);
  at::HostAllocator* current = at::getHostAllocator(c10::DeviceType::CUDA);
  if (current != nullptr && current == ours) return;
  if (current == nullptr) {
    throw StateError(
        "this build of PyTorch has no pinned memory for CUDA, and cannot tell when its copies "
        "are done. Install a CUDA build of torch");
  }
  // Where somebody registered another one after ours, it goes in front of that.
  ours = new WatchingAllocator(current);
  at::setHostAllocator(c10::DeviceType::CUDA, ours, /*priority=*/0);
  if (at::getHostAllocator(c10::DeviceType::CUDA) != ours) {
    at::setHostAllocator(c10::DeviceType::CUDA, ours, /*priority=*/255);
  }
}

at::TensorBase pinned_empty(c10::IntArrayRef sizes, std::optional<c10::IntArrayRef> strides,
                            c10::ScalarType dtype, int device, int numa_node) {
  watch_copies();
  PoolAllocator& allocator = PoolAllocator::of(device, numa_node);
  const c10::DispatchKeySet keys(c10::DispatchKey::CPU);
  if (strides) return at::detail::empty_strided_generic(sizes, *strides, &allocator, keys, dtype);
  return at::detail::empty_generic(sizes, &allocator, keys, dtype, std::nullopt);
}

void own_pinned(bool enabled) {
  if (Runtime::get().backend() == Backend::kHost) {
    throw StateError(
        "there is no CUDA device, or this build has no CUDA: PyTorch's pinned memory cannot be "
        "replaced");
  }
  watch_copies();
  owner.store(enabled, std::memory_order_relaxed);
}

bool owns_pinned() noexcept {
  return owner.load(std::memory_order_relaxed);
}

void set_throw_interrupt(ThrowInterrupt function) noexcept {
  throw_interrupt.store(function);
}

}  // namespace staging::torch_ops
