#include "transfer/buffer_copies.h"

#include <chrono>
#include <utility>

#include "runtime/device_scope.h"
#include "support/error.h"

namespace staging {

namespace {

UploadRing::Tag next_tag() noexcept {
  static std::atomic<UploadRing::Tag> tags{0};
  return tags.fetch_add(1, std::memory_order_relaxed) + 1;
}

// For counters that only one thread at a time writes.
void add(std::atomic<std::uint64_t>& counter, std::uint64_t amount) noexcept {
  counter.store(counter.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
}

}  // namespace

BufferCopies::BufferCopies(DeviceContext& context, const Arrays& arrays, Reuse reuse) noexcept
    : context_(context),
      arrays_(arrays),
      reuse_(reuse),
      tag_(next_tag()),
      order_(context.runtime()) {}

void BufferCopies::check_not_capturing(StreamRef stream, const char* what) const {
  if (context_.runtime().capture_status(stream.device, stream.handle) != CaptureStatus::kNone) {
    throw StateError(detail::join_message(
        what, " cannot run on a stream that captures a CUDA graph: at replay it would use host "
              "memory that this buffer does not guard then"));
  }
}

UploadRing& BufferCopies::ring_of(StreamRef stream) {
  if (ring_ == nullptr || !(ring_->stream() == stream)) ring_ = context_.ring(stream);
  return *ring_;
}

bool BufferCopies::upload(StreamRef stream, std::size_t nbytes) {
  if (nbytes == 0) return false;
  Runtime::check_not_forked();
  const DeviceScope scope(context_.runtime(), stream.device);
  CopyOrder::Turn turn(order_);
  check_not_capturing(stream, "copy_to_gpu()");
  bool direct = arrays_.host_is_pinned && reuse_ != Reuse::kSnapshot;
  if (!direct && turn.host_in_flight()) {
    // A download is in flight: the array holds bytes from before it, and a snapshot would take
    // those. In stream order the transfer reads what the download wrote; of a pageable array
    // the driver would read at once, too.
    direct = arrays_.host_is_pinned;
    if (!direct) wait_host();
  }
  if (direct) {
    copy_host_array(turn, stream, nbytes, CopyKind::kHostToDevice);
  } else {
    UploadRing& ring = ring_of(stream);
    turn.wait_on(stream);
    UploadReport report;
    try {
      Event event =
          upload_snapshot(context_, ring, arrays_.device, arrays_.host, nbytes, tag_, &report);
      turn.done(std::move(event), /*uses_host=*/false);
    } catch (...) {
      if (report.lost) turn.lost(stream);
      throw;
    }
    count_waits(report.waits, report.waited_us);
  }
  add(counts_.to_gpu, 1);
  add(counts_.to_gpu_nbytes, nbytes);
  return direct && reuse_ != Reuse::kUnchecked;
}

void BufferCopies::download(StreamRef stream, std::size_t nbytes) {
  if (nbytes == 0) return;
  Runtime::check_not_forked();
  const DeviceScope scope(context_.runtime(), stream.device);
  {
    CopyOrder::Turn turn(order_);
    check_not_capturing(stream, "copy_to_cpu()");
    copy_host_array(turn, stream, nbytes, CopyKind::kDeviceToHost);
    add(counts_.to_cpu, 1);
    add(counts_.to_cpu_nbytes, nbytes);
  }
  if (!arrays_.host_is_pinned) wait_host();
}

void BufferCopies::copy_host_array(CopyOrder::Turn& turn, StreamRef stream, std::size_t nbytes,
                                   CopyKind kind) {
  Runtime& runtime = context_.runtime();
  Event event = context_.events().acquire();
  turn.wait_on(stream);
  const bool to_device = kind == CopyKind::kHostToDevice;
  runtime.copy_async(stream.device, to_device ? arrays_.device : arrays_.host,
                     to_device ? arrays_.host : arrays_.device, nbytes, kind, stream.handle);
  try {
    event.record(stream);
  } catch (...) {
    turn.lost(stream);
    throw;
  }
  turn.done(std::move(event), /*uses_host=*/true);
}

ReservedSlot BufferCopies::begin_fill(StreamRef stream, std::size_t nbytes) {
  Runtime::check_not_forked();
  const DeviceScope scope(context_.runtime(), stream.device);
  check_not_capturing(stream, "fill()");
  std::shared_ptr<UploadRing> ring = context_.ring(stream);
  UploadRing::Slot slot = ring->reserve_block(nbytes, tag_);
  count_waits(slot.waits(), slot.waited_us());
  return ReservedSlot(std::move(ring), std::move(slot));
}

void BufferCopies::end_fill(ReservedSlot slot, std::size_t nbytes) {
  Runtime::check_not_forked();
  const StreamRef stream = slot.stream();
  const DeviceScope scope(context_.runtime(), stream.device);
  CopyOrder::Turn turn(order_);
  check_not_capturing(stream, "fill()");
  turn.wait_on(stream);
  UploadReport report;
  try {
    Event event = slot.upload(
        context_,
        [&](const std::byte* data) {
          context_.runtime().copy_async(stream.device, arrays_.device, data, nbytes,
                                        CopyKind::kHostToDevice, stream.handle);
        },
        &report);
    turn.done(std::move(event), /*uses_host=*/false);
  } catch (...) {
    if (report.lost) turn.lost(stream);
    throw;
  }
  add(counts_.to_gpu, 1);
  add(counts_.to_gpu_nbytes, nbytes);
}

void BufferCopies::wait_host() {
  const auto start = std::chrono::steady_clock::now();
  if (!order_.wait_host()) return;
  const auto waited = std::chrono::duration_cast<std::chrono::microseconds>(
      std::chrono::steady_clock::now() - start);
  count_waits(1, static_cast<std::uint64_t>(waited.count()));
}

void BufferCopies::count_waits(std::uint64_t waits, std::uint64_t waited_us) noexcept {
  if (waits == 0) return;
  counts_.waits.fetch_add(waits, std::memory_order_relaxed);
  counts_.waited_us.fetch_add(waited_us, std::memory_order_relaxed);
}

BufferCounts BufferCopies::counts() const noexcept {
  const auto read = [](const std::atomic<std::uint64_t>& counter) {
    return counter.load(std::memory_order_relaxed);
  };
  return {.to_gpu = read(counts_.to_gpu),
          .to_cpu = read(counts_.to_cpu),
          .fetches = read(counts_.fetches),
          .to_gpu_nbytes = read(counts_.to_gpu_nbytes),
          .to_cpu_nbytes = read(counts_.to_cpu_nbytes),
          .waits = read(counts_.waits),
          .waited_us = read(counts_.waited_us)};
}

}  // namespace staging
