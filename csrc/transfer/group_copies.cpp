#include "transfer/group_copies.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "runtime/device_scope.h"
#include "support/error.h"
#include "transfer/execute.h"
#include "transfer/upload.h"

namespace staging {

namespace {

// Of a host copy into the slot: what it costs to take bytes along that nobody asked for.
constexpr double kSnapshotUsPerByte = 1e-4;
// Both sides of a run begin at a multiple of this: the widest access.
constexpr std::size_t kSlotAlignment = 16;

std::size_t align_up(std::size_t nbytes) {
  return (nbytes + kSlotAlignment - 1) & ~(kSlotAlignment - 1);
}

bool by_member(const GroupCopies::Part& a, const GroupCopies::Part& b) {
  return a.member < b.member;
}

}  // namespace

GroupCopies::GroupCopies(DeviceContext& context, Arenas arenas, bool keep_tails)
    : context_(context),
      arenas_(std::move(arenas)),
      keep_tails_(keep_tails),
      order_(context.runtime()) {}

GroupCopies::~GroupCopies() {
  keep_until_unused(context_, order_, arenas_.host_owner, arenas_.device_owner);
}

std::uint32_t GroupCopies::add_member(std::size_t offset, std::size_t nbytes) {
  const std::size_t end = members_.empty() ? 0 : members_.back().offset + members_.back().nbytes;
  STAGING_EXPECTS(offset >= end && offset % kAlignment == 0 && offset + nbytes <= arenas_.nbytes,
                  "a member of ", nbytes, " bytes cannot begin at ", offset,
                  " of a group's arena of ", arenas_.nbytes, " bytes, of which ", end,
                  " are taken");
  if (!members_.empty()) members_.back().next_offset = offset;
  members_.push_back({.offset = offset, .nbytes = nbytes, .next_offset = arenas_.nbytes});
  return static_cast<std::uint32_t>(members_.size() - 1);
}

bool GroupCopies::upload(StreamRef stream, std::span<const Part> parts) {
  if (parts.empty()) return false;
  Runtime::check_not_forked();
  const DeviceScope scope(context_.runtime(), stream.device);
  if (context_.capturing(stream)) [[unlikely]] {
    for (const Part& part : parts) members_[part.member].copies->upload(stream, part.nbytes);
    return false;
  }
  bool uses_host = false;
  std::vector<Part> rest;
  while (!parts.empty()) {
    std::vector<Part> alone;
    {
      CopyOrder::Turn turn(order_);
      if (order_.members_ahead() > 0) [[unlikely]]
        alone = used_by_the_device(parts);
      if (alone.empty()) {
        upload_in_turn(turn, stream, parts);
        break;
      }
    }
    // A download into these members' host arrays is in flight, and a snapshot would take bytes
    // from before it: their own copies read the arrays in stream order.
    for (const Part& part : alone) {
      uses_host |= members_[part.member].copies->upload(stream, part.nbytes);
    }
    std::vector<Part> others;
    std::set_difference(parts.begin(), parts.end(), alone.begin(), alone.end(),
                        std::back_inserter(others), by_member);
    rest.swap(others);
    parts = rest;
  }
  return uses_host;
}

std::vector<GroupCopies::Part> GroupCopies::used_by_the_device(std::span<const Part> parts) {
  std::vector<Part> used;
  std::copy_if(parts.begin(), parts.end(), std::back_inserter(used),
               [&](const Part& part) { return members_[part.member].copies->host_in_flight(); });
  return used;
}

// Makes `stream` wait for all that the copy of `parts` must come after.
void GroupCopies::join(CopyOrder::Turn& turn, StreamRef stream, std::span<const Part> parts) {
  turn.wait_on(stream);
  if (order_.members_ahead() == 0) [[likely]]
    return;
  for (const Part& part : parts) members_[part.member].copies->join_group(stream);
}

// The copy was enqueued behind join(): who comes after it comes after what it came after.
void GroupCopies::joined(std::span<const Part> parts) {
  if (order_.members_ahead() == 0) [[likely]]
    return;
  for (const Part& part : parts) members_[part.member].copies->joined_group();
}

// The runs of the parts: neighbours are one, and the padding between them goes along. So does,
// with `across_tails`, what lies behind a part that another follows.
std::size_t GroupCopies::make_runs(std::span<const Part> parts, bool across_tails) {
  runs_.clear();
  std::size_t next_offset = SIZE_MAX;  // where what may join the last run begins
  for (const Part& part : parts) {
    if (part.nbytes == 0) continue;
    const Member& member = members_[part.member];
    if (member.offset == next_offset) {
      runs_.back().nbytes = member.offset + part.nbytes - runs_.back().offset;
    } else {
      const std::size_t slot =
          runs_.empty() ? 0 : align_up(runs_.back().slot + runs_.back().nbytes);
      runs_.push_back({member.offset, part.nbytes, slot});
    }
    next_offset = across_tails || part.nbytes == member.nbytes ? member.next_offset : SIZE_MAX;
  }
  return runs_.empty() ? 0 : runs_.back().slot + runs_.back().nbytes;
}

// The cheapest way of copying the runs, with `host` for the arena's host side.
void GroupCopies::plan_runs(StreamRef stream, CopyKind kind, const PlanLimits& limits,
                            std::byte* host, bool packed) {
  items_.clear();
  for (const Run& run : runs_) {
    std::byte* const on_host = host + (packed ? run.slot : run.offset);
    std::byte* const on_device = arenas_.device + run.offset;
    if (kind == CopyKind::kHostToDevice) {
      items_.push_back({on_device, on_host, run.nbytes});
    } else {
      items_.push_back({on_host, on_device, run.nbytes});
    }
  }
  plan_.plan_disjoint(items_, CostTable::current(stream.device).of(kind), limits);
}

void GroupCopies::upload_in_turn(CopyOrder::Turn& turn, StreamRef stream,
                                 std::span<const Part> parts) {
  std::size_t nbytes = make_runs(parts, /*across_tails=*/false);
  if (nbytes == 0) return;
  if (ring_ == nullptr || !(ring_->stream() == stream)) ring_ = context_.ring(stream);
  if (!keep_tails_ && runs_.size() > 1) {
    // All in one, or the parts: which is cheaper? The addresses do not matter for that.
    const PlanLimits limits = limits_on(context_, stream, CaptureStatus::kNone, nullptr);
    plan_runs(stream, CopyKind::kHostToDevice, limits, arenas_.host, /*packed=*/false);
    const double apart_us = plan_.cost_us();
    const std::size_t whole = make_runs(parts, /*across_tails=*/true);
    plan_runs(stream, CopyKind::kHostToDevice, limits, arenas_.host, /*packed=*/false);
    const double whole_us =
        plan_.cost_us() + static_cast<double>(whole - nbytes) * kSnapshotUsPerByte;
    nbytes = whole_us < apart_us ? whole : make_runs(parts, /*across_tails=*/false);
  }
  join(turn, stream, parts);
  UploadReport report;
  std::size_t operations = 0;
  try {
    Event event = upload_through_slot(
        context_, *ring_, nbytes,
        [&](std::byte* slot) {
          for (const Run& run : runs_) {
            std::memcpy(slot + run.slot, arenas_.host + run.offset, run.nbytes);
          }
        },
        [&](std::byte* slot, std::size_t* enqueued) {
          plan_runs(stream, CopyKind::kHostToDevice,
                    limits_on(context_, stream, CaptureStatus::kNone, slot), slot,
                    /*packed=*/true);
          execute(context_, stream, CopyKind::kHostToDevice, plan_, enqueued);
          operations = *enqueued;
        },
        /*tag=*/0, &report);
    turn.done(std::move(event), /*uses_host=*/false);
  } catch (...) {
    if (report.lost) turn.lost(stream);
    throw;
  }
  joined(parts);
  std::uint64_t copied = 0;
  for (const Part& part : parts) {
    copied += part.nbytes;
    members_[part.member].copies->uploaded_by_group(part.nbytes);
  }
  detail::add(counts_.to_gpu, 1);
  detail::add(counts_.to_gpu_nbytes, copied);
  detail::add(counts_.operations, operations);
  detail::add(counts_.waits, report.waits);
  detail::add(counts_.waited_us, report.waited_us);
}

void GroupCopies::download(StreamRef stream, std::span<const Part> parts) {
  Runtime::check_not_forked();
  const DeviceScope scope(context_.runtime(), stream.device);
  {
    CopyOrder::Turn turn(order_);
    if (context_.capturing(stream)) {
      throw StateError(
          "copy_to_cpu() of a group cannot be captured in a CUDA graph: at replay it would use "
          "host memory that is not guarded then. Call it outside the capture");
    }
    if (make_runs(parts, /*across_tails=*/false) == 0) return;
    plan_runs(stream, CopyKind::kDeviceToHost,
              arenas_.host_is_pinned
                  ? limits_on(context_, stream, CaptureStatus::kNone, arenas_.host)
                  : PlanLimits{.batch = false, .kernel = false},
              arenas_.host, /*packed=*/false);
    // Before the copies: if no event is to be had, nothing has been enqueued.
    Event event = context_.events().acquire();
    join(turn, stream, parts);
    std::size_t operations = 0;
    try {
      execute(context_, stream, CopyKind::kDeviceToHost, plan_, &operations);
      event.record(stream);
    } catch (...) {
      if (operations > 0 && !turn.lost(stream)) {
        for (const Part& part : parts) members_[part.member].copies->lost_by_group(stream);
      }
      throw;
    }
    joined(parts);
    std::uint64_t copied = 0;
    for (const Part& part : parts) {
      copied += part.nbytes;
      if (part.nbytes > 0) members_[part.member].copies->downloaded_by_group(event, part.nbytes);
    }
    turn.done(std::move(event), /*uses_host=*/false);
    detail::add(counts_.to_cpu, 1);
    detail::add(counts_.to_cpu_nbytes, copied);
    detail::add(counts_.operations, operations);
  }
  if (arenas_.host_is_pinned) return;
  for (const Part& part : parts) members_[part.member].copies->wait_host();
}

GroupCounts GroupCopies::counts() const noexcept {
  const auto read = [](const std::atomic<std::uint64_t>& counter) {
    return counter.load(std::memory_order_relaxed);
  };
  return {.to_gpu = read(counts_.to_gpu),
          .to_cpu = read(counts_.to_cpu),
          .to_gpu_nbytes = read(counts_.to_gpu_nbytes),
          .to_cpu_nbytes = read(counts_.to_cpu_nbytes),
          .operations = read(counts_.operations),
          .waits = read(counts_.waits),
          .waited_us = read(counts_.waited_us)};
}

}  // namespace staging
