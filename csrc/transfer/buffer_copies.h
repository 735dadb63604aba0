// The copies between one host array and one device array, ordered among themselves.
//
// Purpose: the race-free heart of CpuGpuBuffer.
// Owner: the arrays belong to the caller, who keeps them alive while a copy is in flight
//   (retain_until_done hands that over to the context).
// Thread-safety: one object from several threads is safe; whose copy comes first is theirs
//   to decide.
//
// Invariants:
//   * Copies of this object reach the device in the order of the calls, on whatever streams:
//     a copy on another stream than the last one's first makes its stream wait for that.
//   * After upload() the host array may be overwritten, unless it said that it reads the
//     array itself; then, and after download(), the array is the device's until wait_host().
#pragma once

#include <mutex>

#include "stream/event_frontier.h"
#include "transfer/device_context.h"

namespace staging {

class BufferCopies {
 public:
  BufferCopies(DeviceContext& context, void* host, void* device, bool host_is_pinned) noexcept
      : context_(context), host_(host), device_(device), host_is_pinned_(host_is_pinned) {}
  BufferCopies(const BufferCopies&) = delete;  // it is the order of one pair of arrays
  BufferCopies& operator=(const BufferCopies&) = delete;

  // Enqueues host[:nbytes] -> device[:nbytes] on `stream`; see upload.h for what it waits for.
  // While a download is in flight the copy reads the host array itself, in stream order.
  // Throws StateError where `stream` captures.
  void upload(StreamRef stream, std::size_t nbytes);
  // Enqueues device[:nbytes] -> host[:nbytes] on `stream` and waits for nothing, except where
  // the host array is pageable: then it returns when the bytes are there.
  void download(StreamRef stream, std::size_t nbytes);

  // Whether the device may still read or write the host array. Queries what is not known to
  // be complete.
  bool host_in_flight();
  // Blocks until it does not; throws Interrupted. Call without the GIL.
  void wait_host();
  // The events of the copies that use the host array, for whoever keeps it alive.
  EventFrontier host_users() const;

  DeviceContext& context() const noexcept { return context_; }

 private:
  // A consistent look at the state, taken under the lock and used without it.
  struct State {
    EventFrontier last;
    EventFrontier host_users;
    UploadRing* ring;
  };
  State state() const;
  void check_not_capturing(StreamRef stream) const;
  // Enqueues one copy that uses the host array itself.
  void copy_host_array(StreamRef stream, std::size_t nbytes, CopyKind kind, const State& before);

  DeviceContext& context_;
  void* const host_;
  void* const device_;
  const bool host_is_pinned_;

  mutable std::mutex mutex_;
  EventFrontier last_;          // the latest copies; guarded by mutex_
  EventFrontier host_users_;    // those of them and before that use the host array; likewise
  UploadRing* ring_ = nullptr;  // of the last upload's stream; likewise
};

}  // namespace staging
