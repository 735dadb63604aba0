// The copies between one host array and one device array.
//
// Purpose: the race-free heart of CpuGpuBuffer.
// Owner: the arrays belong to the caller, who keeps them alive while a copy is in flight (see
//   CopyOrder).
// Thread-safety: one object from several threads is safe; whose copy comes first is theirs
//   to decide.
//
// Invariants:
//   * Copies of this object reach the device in the order of the calls, on whatever streams:
//     a copy on another stream than the last one's first makes its stream wait for that.
//   * The bytes that a copy to the device takes are those of the moment of the call: of a
//     snapshot because they were copied, of the other policies because the host array is
//     handed out only after the copy.
//   * After an upload() that returned false the host array may be overwritten. After one that
//     returned true, and after download(), it is the device's until order().wait_host().
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transfer/copy_order.h"
#include "transfer/device_context.h"
#include "transfer/upload.h"

namespace staging {

// How the host array is protected while a copy to the device is in flight.
enum class Reuse : std::uint8_t {
  kSnapshot,   // its bytes are taken first
  kWait,       // the transfer reads it, and the guard waits for the transfer
  kUnchecked,  // the transfer reads it, and the caller knows what they do
};

struct BufferCounts {
  std::uint64_t to_gpu = 0;
  std::uint64_t to_cpu = 0;
  std::uint64_t fetches = 0;
  std::uint64_t to_gpu_nbytes = 0;
  std::uint64_t to_cpu_nbytes = 0;  // fetches included
  std::uint64_t waits = 0;          // for the host array, a replay or a full ring
  std::uint64_t waited_us = 0;
};

class BufferCopies {
 public:
  struct Arrays {
    void* host;
    bool host_is_pinned;
    void* device;
  };

  BufferCopies(DeviceContext& context, const Arrays& arrays, Reuse reuse) noexcept;
  BufferCopies(const BufferCopies&) = delete;  // it is the order of one pair of arrays
  BufferCopies& operator=(const BufferCopies&) = delete;

  // Enqueues host[:nbytes] -> device[:nbytes] on `stream`. Whether the transfer reads the host
  // array itself: where the policy says so, or where a download into it is in flight, whose
  // bytes a snapshot would miss. A pageable host array is never read by a transfer.
  // Waits only where the stream's ring is full of copies in flight, for the oldest.
  // Throws StateError where `stream` captures.
  bool upload(StreamRef stream, std::size_t nbytes);
  // Enqueues device[:nbytes] -> host[:nbytes] on `stream` and waits for nothing, except where
  // the host array is pageable: then it returns when the bytes are there.
  void download(StreamRef stream, std::size_t nbytes);

  // A slot that the caller fills at leisure; end_fill() enqueues slot[:nbytes] ->
  // device[:nbytes] on the stream of begin_fill(). Dropping it instead gives it up.
  ReservedSlot begin_fill(StreamRef stream, std::size_t nbytes);
  void end_fill(ReservedSlot slot, std::size_t nbytes);

  // Blocks until the host array is the host's; throws Interrupted. Call without the GIL.
  void wait_host();

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
  // Enqueues one copy that uses the host array itself.
  void copy_host_array(CopyOrder::Turn& turn, StreamRef stream, std::size_t nbytes, CopyKind kind);
  void count_waits(std::uint64_t waits, std::uint64_t waited_us) noexcept;

  DeviceContext& context_;
  const Arrays arrays_;
  const Reuse reuse_;
  const UploadRing::Tag tag_;
  CopyOrder order_;
  std::shared_ptr<UploadRing> ring_;  // of the last upload; belongs to the turn

  // Those that are not atomic sums of several threads belong to the turn.
  struct {
    std::atomic<std::uint64_t> to_gpu{0}, to_cpu{0}, fetches{0};
    std::atomic<std::uint64_t> to_gpu_nbytes{0}, to_cpu_nbytes{0};
    std::atomic<std::uint64_t> waits{0}, waited_us{0};
  } counts_;
};

}  // namespace staging
