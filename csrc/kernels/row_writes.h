// Writes many short runs of bytes into device tables, in one launch.
//
// Purpose: sparse updates of large tables. What is written and where lies packed in one pinned
//   slot, which the kernel reads through its device mapping: as many writes as one likes, into
//   as many tables, without an upload of their own.
// Thread-safety: stateless. The writes of one launch happen in no particular order: none may
//   touch a byte that another writes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/runtime.h"

namespace staging::kernels {

struct RowWrite {
  unsigned char* dst;
  std::uint32_t src_offset;  // from the payload's first byte
  std::uint32_t nbytes;
};
static_assert(sizeof(RowWrite) == 16);

// A longer write is given to the kernel in pieces: each piece is one warp's work.
inline constexpr std::uint32_t kRowWriteNbytes = 4096;

struct RowWritesParams {
  const RowWrite* writes;  // 16-byte aligned
  const unsigned char* payload;
  std::uint32_t count;
};

const Kernel& row_writes() noexcept;

// Enqueues the writes on `stream`; waits for nothing. `writes` and `payload` are addresses of
// the device, and stay as they are until the launch has run.
void launch_row_writes(Runtime& runtime, int device, StreamHandle stream,
                       const RowWritesParams& params);

}  // namespace staging::kernels
