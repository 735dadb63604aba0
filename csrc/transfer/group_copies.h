// Many buffers in one pair of arenas, staged together: one slot, one transfer or launch, one
// event.
//
// Purpose: the heart of StagingGroup. A member is a BufferCopies of its own; this copies
//   several of them at once.
// Owner: shares the arenas with the members, and hands them over to the context when it is
//   destroyed while a copy still uses them. The members are the caller's, who keeps them
//   alive while they are named here.
// Thread-safety: as BufferCopies. The members of a group take turns with each other and with
//   the group: one call at a time enqueues.
//
// Invariants:
//   * A copy of the group comes after all of its earlier ones, and after the named members' own
//     copies; a member's own copy comes after all of the group's.
//   * The bytes that reach the device are those of the moment of the call, like a member's.
//   * Only the used prefixes are written on the device, and the padding between members, which
//     belongs to nobody; unless `keep_tails` is off, then also what lies behind a prefix up to
//     the next named member: the host's bytes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "transfer/buffer_copies.h"
#include "transfer/copy_plan.h"

namespace staging {

struct GroupCounts {
  std::uint64_t to_gpu = 0;
  std::uint64_t to_cpu = 0;
  std::uint64_t to_gpu_nbytes = 0;
  std::uint64_t to_cpu_nbytes = 0;
  std::uint64_t operations = 0;  // transfers, batches and launches that this took
  std::uint64_t waits = 0;       // for a full ring
  std::uint64_t waited_us = 0;
};

class GroupCopies {
 public:
  // Where members begin: as the allocators align, and enough for the widest access.
  static constexpr std::size_t kAlignment = 256;

  struct Arenas {
    std::byte* host;
    bool host_is_pinned;
    std::byte* device;
    std::size_t nbytes;
    std::shared_ptr<void> host_owner = {};
    std::shared_ptr<void> device_owner = {};
  };
  // A member's first bytes.
  struct Part {
    std::uint32_t member;
    std::size_t nbytes;
  };

  GroupCopies(DeviceContext& context, Arenas arenas, bool keep_tails);
  GroupCopies(const GroupCopies&) = delete;  // members point to it
  GroupCopies& operator=(const GroupCopies&) = delete;
  // Its members are gone by then.
  ~GroupCopies();

  // The device arena was filled on `stream` just now: the copies of the group and of its members
  // come after that. Before any other call. Throws StateError where `stream` captures.
  void filled_on(StreamRef stream) {
    if (arenas_.nbytes > 0) order_.begin_behind(context_.record_fill(stream));
  }

  // The next member: `nbytes` at `offset`, behind the ones before. Its index.
  std::uint32_t add_member(std::size_t offset, std::size_t nbytes);
  // Its copies, made with order() as their group. Null again when they are gone.
  void attach(std::uint32_t member, BufferCopies* copies) { members_[member].copies = copies; }

  // Enqueues the named prefixes, host -> device, on `stream`. The parts are of different
  // members, in ascending order. Waits only where the stream's ring is full of copies in
  // flight, for the oldest. Returns true where a transfer reads a host array itself, because
  // a download into it is in flight.
  //   One copy, batch or launch, and one event record; more only where the plan is better off
  //   with a transfer of its own for a large part.
  // Where `stream` captures, each member's copy is captured by itself; see BufferCopies.
  bool upload(StreamRef stream, std::span<const Part> parts);
  // Enqueues them device -> host, and waits for nothing, except where the host arena is
  // pageable: then it returns when the bytes are there. Throws StateError under capture.
  void download(StreamRef stream, std::span<const Part> parts);

  CopyOrder& order() noexcept { return order_; }
  GroupCounts counts() const noexcept;

 private:
  struct Member {
    std::size_t offset;
    std::size_t nbytes;
    std::size_t next_offset;  // of the next member, or the end
    BufferCopies* copies = nullptr;
  };
  // A run of bytes of the arenas, and where it lies in the slot.
  struct Run {
    std::size_t offset;
    std::size_t nbytes;
    std::size_t slot;
  };

  std::vector<Part> used_by_the_device(std::span<const Part> parts);
  void join(CopyOrder::Turn& turn, StreamRef stream, std::span<const Part> parts);
  void joined(std::span<const Part> parts);
  std::size_t make_runs(std::span<const Part> parts, bool across_tails);
  void plan_runs(StreamRef stream, CopyKind kind, const PlanLimits& limits, std::byte* host,
                 bool packed);
  void upload_in_turn(CopyOrder::Turn& turn, StreamRef stream, std::span<const Part> parts);

  DeviceContext& context_;
  const Arenas arenas_;
  const bool keep_tails_;
  CopyOrder order_;
  std::vector<Member> members_;

  // What belongs to the turn: kept for its memory.
  std::shared_ptr<UploadRing> ring_;
  std::vector<Run> runs_;
  std::vector<CopyItem> items_;
  CopyPlan plan_;
  struct {
    std::atomic<std::uint64_t> to_gpu{0}, to_cpu{0}, to_gpu_nbytes{0}, to_cpu_nbytes{0};
    std::atomic<std::uint64_t> operations{0}, waits{0}, waited_us{0};
  } counts_;
};

}  // namespace staging
