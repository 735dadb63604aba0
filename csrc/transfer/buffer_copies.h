// The copies between one host array and one device array.
//
// Purpose: the race-free heart of CpuGpuBuffer.
// Owner: shares the arrays with the caller, and hands them over to the context when it is
//   destroyed while a copy still uses them.
// Thread-safety: one object from several threads is safe; whose copy comes first is theirs
//   to decide.
//
// Invariants:
//   * Copies of this object reach the device in the order of the calls, on whatever streams, and
//     behind what filled the device array: a copy on another stream than the last one's first makes
//     its stream wait for that.
//   * The bytes that a copy to the device takes are those of the moment of the call: of a
//     snapshot because they were copied, of the other policies because the host array is
//     handed out only after the copy.
//   * A copy that is captured in a graph reads a slot of its own at every replay, which
//     refill() writes; the graph keeps the slot and the device array.
//   * After an upload() that returned false the host array may be overwritten. After one that
//     returned true, and after download(), it is the device's until order().wait_host().
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transfer/copy_order.h"
#include "transfer/device_context.h"
#include "transfer/fetch.h"
#include "transfer/graph_slot.h"
#include "transfer/upload.h"

namespace staging {

// How the host array is protected while a copy to the device is in flight.
enum class Reuse : std::uint8_t {
  kSnapshot,   // its bytes are taken first
  kWait,       // the transfer reads it, and the guard waits for the transfer
  kUnchecked,  // the transfer reads it, and the caller knows what they do
};

// For whoever destroys an order with the owners of its arrays: hands these over to the context,
// which keeps them as long as a copy may use them. Waits for nothing.
void keep_until_unused(DeviceContext& context, const CopyOrder& order,
                       const std::shared_ptr<void>& host,
                       const std::shared_ptr<void>& device) noexcept;

namespace detail {
// To a counter that only one thread at a time writes.
inline void add(std::atomic<std::uint64_t>& counter, std::uint64_t amount) noexcept {
  counter.store(counter.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
}
}  // namespace detail

struct BufferCounts {
  std::uint64_t to_gpu = 0;
  std::uint64_t to_cpu = 0;
  std::uint64_t fetches = 0;
  std::uint64_t to_gpu_nbytes = 0;
  std::uint64_t to_cpu_nbytes = 0;  // fetches included
  std::uint64_t captured = 0;       // copies in graphs; replays are not counted
  std::uint64_t waits = 0;          // for the host array, a replay or a full ring
  std::uint64_t waited_us = 0;
};

class BufferCopies {
 public:
  struct Arrays {
    void* host;
    bool host_is_pinned;
    void* device;
    std::size_t nbytes;                     // of either
    std::shared_ptr<void> host_owner = {};  // what keeps them alive
    std::shared_ptr<void> device_owner = {};
  };

  // `group`: the order of the group that it is a member of, if it is.
  BufferCopies(DeviceContext& context, Arrays arrays, Reuse reuse,
               std::shared_ptr<CopyOrder> group = nullptr) noexcept;
  BufferCopies(const BufferCopies&) = delete;  // it is the order of one pair of arrays
  BufferCopies& operator=(const BufferCopies&) = delete;
  ~BufferCopies();

  // The device array was filled on `stream` just now: this object's copies come after that. Of
  // a buffer that is no member of a group, before any other call. Throws StateError where
  // `stream` captures.
  void filled_on(StreamRef stream) {
    if (arrays_.nbytes > 0) order_.begin_behind(context_.record_fill(stream));
  }

  // Enqueues host[:nbytes] -> device[:nbytes] on `stream`. Whether the transfer reads the host
  // array itself: where the policy says so, or where a download into it is in flight, whose
  // bytes a snapshot would miss. A pageable host array is never read by a transfer.
  // Waits only where the stream's ring is full of copies in flight, for the oldest.
  //
  // Where `stream` captures, the copy becomes part of the graph and reads the graph slot,
  // which has the bytes of this moment until refill(). Where the device array's fill has not run
  // yet, the call waits for that: a graph cannot. Under kUnchecked it reads a pinned host
  // array itself, at every replay, unguarded.
  bool upload(StreamRef stream, std::size_t nbytes);
  // Puts host[:nbytes] into the graph slot, for the replays that are launched from now on, on
  // `stream`: it comes behind this object's copies so far. Waits until the replays launched
  // so far have read the slot, and a download has arrived in the host array. Throws
  // StateError where no copy was captured, or `stream` captures.
  void refill(StreamRef stream, std::size_t nbytes);
  // Enqueues device[:nbytes] -> host[:nbytes] on `stream` and waits for nothing, except where
  // the host array is pageable: then it returns when the bytes are there.
  void download(StreamRef stream, std::size_t nbytes);

  // A slot that the caller fills at leisure; end_fill() enqueues slot[:nbytes] ->
  // device[:nbytes] on the stream of begin_fill(). Dropping it instead gives it up.
  ReservedSlot begin_fill(StreamRef stream, std::size_t nbytes);
  void end_fill(ReservedSlot slot, std::size_t nbytes);

  // Enqueues device[:nbytes] -> dst on `stream`, `dst` being pinned memory that the caller
  // keeps until the fetch is done. Waits for nothing. Where it throws and `lost` is set, the
  // copy may run nonetheless, and nothing tells when it ends: `dst` must never be reused.
  Fetch fetch(StreamRef stream, void* dst, std::size_t nbytes, bool* lost);

  // Whether the device may still read or write the host array. Asks the runtime.
  bool host_in_flight() { return order_.host_in_flight(); }
  // Blocks until the host array is the host's; throws Interrupted. Call without the GIL.
  void wait_host();

  // -- of a member, for the group, in the group's turn (see GroupCopies) ---------------------
  // Makes `stream` wait for this member's own copies and replays.
  void join_group(StreamRef stream);
  // The group's copy was enqueued behind that.
  void joined_group() { order_.joined(/*stay=*/graph_slot_ != nullptr); }
  void uploaded_by_group(std::size_t nbytes) noexcept;
  // The group's copy writes the host array until `event`; or nothing tells until when.
  void downloaded_by_group(const Event& event, std::size_t nbytes);
  void lost_by_group(StreamRef stream) { order_.host_lost_by_group(stream); }

  CopyOrder& order() noexcept { return order_; }
  const CopyOrder& order() const noexcept { return order_; }
  DeviceContext& context() const noexcept { return context_; }
  Reuse reuse() const noexcept { return reuse_; }
  BufferCounts counts() const noexcept;
  // Slots of this object whose copies are not complete. Asks the runtime.
  std::size_t slots_in_flight() { return context_.count_in_flight(tag_); }

 private:
  void check_not_capturing(StreamRef stream, const char* what) const;
  UploadRing& ring_of(StreamRef stream);
  // Enqueues one copy in this turn and records its event. `uses_host`: the host array.
  Event copy(CopyOrder::Turn& turn, StreamRef stream, void* dst, const void* src,
             std::size_t nbytes, CopyKind kind, bool uses_host, bool* lost);
  void begin_copy(CopyOrder::Turn& turn, StreamRef stream);
  void capture(CopyOrder::Turn& turn, StreamRef stream, std::size_t nbytes);
  void write_graph_slot(std::size_t nbytes);
  void copy_host_array(CopyOrder::Turn& turn, StreamRef stream, std::size_t nbytes, CopyKind kind);
  void count_waits(std::uint64_t waits, std::uint64_t waited_us) noexcept;

  DeviceContext& context_;
  const Arrays arrays_;
  const Reuse reuse_;
  const UploadRing::Tag tag_;
  CopyOrder order_;
  std::shared_ptr<UploadRing> ring_;       // of the last upload; belongs to the turn
  std::shared_ptr<GraphSlot> graph_slot_;  // since the first capture; belongs to the turn

  // Those that are not atomic sums of several threads belong to the turn.
  struct {
    std::atomic<std::uint64_t> to_gpu{0}, to_cpu{0}, fetches{0}, captured{0};
    std::atomic<std::uint64_t> to_gpu_nbytes{0}, to_cpu_nbytes{0};
    std::atomic<std::uint64_t> waits{0}, waited_us{0};
  } counts_;
};

}  // namespace staging
