// One copy, in parts where a registration of pinned memory ends.
//
// Purpose: a region beyond the driver's limit is registered in parts (see
//   memory/pinned_buffer.h), and a transfer may not cross from one into the next. No other
//   memory has such seams, and while the pool has none, this asks nothing.
// Owner: nothing. Thread-safety: from any thread.
#pragma once

#include <cstddef>

#include "memory/pinned_pool.h"
#include "stream/event.h"

namespace staging {

// Enqueues dst[:nbytes] = src[:nbytes] on `stream`, whose device is current; waits for
// nothing. Where it throws, nothing of it is in flight.
void copy_pinned_async(PinnedPool& pool, StreamRef stream, void* dst, const void* src,
                       std::size_t nbytes, CopyKind kind);

// Records `event` on `stream` behind a copy into `block` that was enqueued there. Where that
// fails nobody knows when the copy ends: it waits for the stream, or the block is never used
// again; then it throws.
void record_behind_copy(Runtime& runtime, StreamRef stream, Event& event, PinnedBlock& block);

}  // namespace staging
