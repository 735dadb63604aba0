// Times one way of copying many items: what a cost table is measured with.
//
// Owner: the memory is the caller's. Thread-safety: one at a time on a stream.
#pragma once

#include <cstddef>
#include <vector>

#include "transfer/cost_table.h"
#include "transfer/device_context.h"

namespace staging {

struct MethodTime {
  double host_us;   // until the call returned
  double total_us;  // until the stream was idle
};

// Copies `count` items of `nbytes` that are no neighbours, `repetitions` times, waiting for
// `stream` after each. `dst` and `src` have at least method_timer_nbytes() bytes, one of them
// (or none) pinned host memory, as `kind` says. Empty where the method cannot be used on this
// stream and device. Call without the GIL, with the device current.
std::vector<MethodTime> time_method(DeviceContext& context, StreamRef stream, CopyMethod method,
                                    CopyKind kind, void* dst, const void* src, std::size_t count,
                                    std::size_t nbytes, std::size_t repetitions);

// Enqueues the same copies as often, one behind the other, and waits for nothing: for a device's
// own clock. False where the method cannot be used; nothing was enqueued then.
bool repeat_method(DeviceContext& context, StreamRef stream, CopyMethod method, CopyKind kind,
                   void* dst, const void* src, std::size_t count, std::size_t nbytes,
                   std::size_t repetitions);

// What the items and the gaps between them take on either side.
std::size_t method_timer_nbytes(std::size_t count, std::size_t nbytes) noexcept;

}  // namespace staging
