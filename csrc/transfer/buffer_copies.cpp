#include "transfer/buffer_copies.h"

#include <chrono>
#include <utility>

#include "runtime/device_scope.h"
#include "support/error.h"
#include "transfer/pinned_copy.h"

namespace staging {

namespace {

UploadRing::Tag next_tag() noexcept {
  static std::atomic<UploadRing::Tag> tags{0};
  return tags.fetch_add(1, std::memory_order_relaxed) + 1;
}

std::uint64_t elapsed_us(PollClock::time_point start) {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(PollClock::now() - start).count());
}

void keep_forever(DeviceContext& context, const std::shared_ptr<void>& host,
                  const std::shared_ptr<void>& device) noexcept {
  try {
    context.retain_forever(host);
    context.retain_forever(device);
  } catch (...) {  // no memory to remember them in
  }
}

}  // namespace

void keep_until_unused(DeviceContext& context, const CopyOrder& order,
                       const std::shared_ptr<void>& host,
                       const std::shared_ptr<void>& device) noexcept {
  if (Runtime::forked()) return;
  try {
    if (order.host_lost()) {
      keep_forever(context, host, device);
      return;
    }
    const auto retain = [&](const std::shared_ptr<void>& owner, const Event& user) {
      if (owner == nullptr || !user || user.query()) return;
      EventFrontier users;
      users.add(user);
      context.retain(owner, std::move(users));
    };
    retain(host, order.host_user());
    retain(device, order.last());
  } catch (const Error&) {  // nobody can tell whether they are in use
    keep_forever(context, host, device);
  }
}

BufferCopies::BufferCopies(DeviceContext& context, Arrays arrays, Reuse reuse,
                           std::shared_ptr<CopyOrder> group) noexcept
    : context_(context),
      arrays_(std::move(arrays)),
      reuse_(reuse),
      tag_(next_tag()),
      order_(context.runtime(), std::move(group)) {}

BufferCopies::~BufferCopies() {
  keep_until_unused(context_, order_, arrays_.host_owner, arrays_.device_owner);
}

void BufferCopies::check_not_capturing(StreamRef stream, const char* what) const {
  if (!context_.capturing(stream)) return;
  throw StateError(detail::join_message(
      what,
      " cannot be captured in a CUDA graph: at replay it would use host memory that is not "
      "guarded then. Call it outside the capture; copy_to_gpu() and refill() are what a "
      "graph can have"));
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
  if (context_.capturing(stream)) [[unlikely]] {
    capture(turn, stream, nbytes);
    return false;
  }
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
    begin_copy(turn, stream);
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
  detail::add(counts_.to_gpu, 1);
  detail::add(counts_.to_gpu_nbytes, nbytes);
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
    detail::add(counts_.to_cpu, 1);
    detail::add(counts_.to_cpu_nbytes, nbytes);
  }
  if (!arrays_.host_is_pinned) wait_host();
}

void BufferCopies::begin_copy(CopyOrder::Turn& turn, StreamRef stream) {
  turn.wait_on(stream);
  if (graph_slot_ != nullptr) graph_slot_->wait_on(stream);
}

void BufferCopies::capture(CopyOrder::Turn& turn, StreamRef stream, std::size_t nbytes) {
  turn.wait_fill();
  if (reuse_ == Reuse::kUnchecked && arrays_.host_is_pinned) {
    context_.retain_in_graph(stream, arrays_.host_owner);
    context_.retain_in_graph(stream, arrays_.device_owner);
    copy_pinned_async(context_.pool(), stream, arrays_.device, arrays_.host, nbytes,
                      CopyKind::kHostToDevice);
    return;
  }
  if (graph_slot_ == nullptr) graph_slot_ = std::make_shared<GraphSlot>(context_, arrays_.nbytes);
  order_.set_ahead();
  write_graph_slot(nbytes);
  try {
    graph_slot_->capture(stream, arrays_.device, nbytes, arrays_.device_owner);
  } catch (...) {
    if (graph_slot_->poisoned()) graph_slot_.reset();  // what its graph reads never changes now
    throw;
  }
  detail::add(counts_.captured, 1);
}

void BufferCopies::write_graph_slot(std::size_t nbytes) {
  wait_host();
  const auto start = PollClock::now();
  if (graph_slot_->wait()) count_waits(1, elapsed_us(start));
  graph_slot_->write(arrays_.host, nbytes);
}

void BufferCopies::refill(StreamRef stream, std::size_t nbytes) {
  Runtime::check_not_forked();
  const DeviceScope scope(context_.runtime(), stream.device);
  CopyOrder::Turn turn(order_);
  check_not_capturing(stream, "refill()");
  if (graph_slot_ == nullptr) {
    throw StateError(
        "refill() has nothing to fill: no copy_to_gpu() of this buffer was captured in a CUDA "
        "graph. Capture one first");
  }
  turn.wait_on(stream);
  if (nbytes > 0) write_graph_slot(nbytes);
}

Event BufferCopies::copy(CopyOrder::Turn& turn, StreamRef stream, void* dst, const void* src,
                         std::size_t nbytes, CopyKind kind, bool uses_host, bool* lost) {
  // Before the copy: if no event is to be had, nothing has been enqueued.
  Event event = context_.events().acquire();
  begin_copy(turn, stream);
  copy_pinned_async(context_.pool(), stream, dst, src, nbytes, kind);
  try {
    event.record(stream);
  } catch (...) {
    const bool settled = turn.lost(stream);
    if (lost != nullptr) *lost = !settled;
    throw;
  }
  turn.done(event, uses_host);
  return event;
}

void BufferCopies::copy_host_array(CopyOrder::Turn& turn, StreamRef stream, std::size_t nbytes,
                                   CopyKind kind) {
  const bool to_device = kind == CopyKind::kHostToDevice;
  copy(turn, stream, to_device ? arrays_.device : arrays_.host,
       to_device ? arrays_.host : arrays_.device, nbytes, kind, /*uses_host=*/true, nullptr);
}

Fetch BufferCopies::fetch(StreamRef stream, void* dst, std::size_t nbytes, bool* lost) {
  if (nbytes == 0) return {};
  Runtime::check_not_forked();
  const DeviceScope scope(context_.runtime(), stream.device);
  CopyOrder::Turn turn(order_);
  check_not_capturing(stream, "fetch()");
  Event event = copy(turn, stream, dst, arrays_.device, nbytes, CopyKind::kDeviceToHost,
                     /*uses_host=*/false, lost);
  detail::add(counts_.fetches, 1);
  detail::add(counts_.to_cpu_nbytes, nbytes);
  return Fetch(context_, std::move(event));
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
  begin_copy(turn, stream);
  UploadReport report;
  try {
    Event event = slot.upload(
        context_,
        [&](const std::byte* data) {
          copy_pinned_async(context_.pool(), stream, arrays_.device, data, nbytes,
                            CopyKind::kHostToDevice);
        },
        &report);
    turn.done(std::move(event), /*uses_host=*/false);
  } catch (...) {
    if (report.lost) turn.lost(stream);
    throw;
  }
  detail::add(counts_.to_gpu, 1);
  detail::add(counts_.to_gpu_nbytes, nbytes);
}

void BufferCopies::wait_host() {
  const auto start = PollClock::now();
  if (order_.wait_host()) count_waits(1, elapsed_us(start));
}

void BufferCopies::join_group(StreamRef stream) {
  order_.join(stream);
  if (graph_slot_ != nullptr) graph_slot_->wait_on(stream);
}

void BufferCopies::uploaded_by_group(std::size_t nbytes) noexcept {
  detail::add(counts_.to_gpu, 1);
  detail::add(counts_.to_gpu_nbytes, nbytes);
}

void BufferCopies::downloaded_by_group(const Event& event, std::size_t nbytes) {
  order_.host_used_by_group(event);
  detail::add(counts_.to_cpu, 1);
  detail::add(counts_.to_cpu_nbytes, nbytes);
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
          .captured = read(counts_.captured),
          .waits = read(counts_.waits),
          .waited_us = read(counts_.waited_us)};
}

}  // namespace staging
