// The body of row_writes_kernel. See row_writes.h.
#pragma once

#include "kernels/byte_copy.cuh"
#include "kernels/row_writes.h"

namespace staging::kernels {

inline constexpr std::uint32_t kThreadsPerWrite = 32;

STAGING_KERNEL void row_writes_kernel(RowWritesParams params) {
  const std::uint32_t writers = blockDim.x / kThreadsPerWrite;
  for (std::uint32_t i = blockIdx.x * writers + threadIdx.x / kThreadsPerWrite; i < params.count;
       i += gridDim.x * writers) {
    const RowWrite write = params.writes[i];
    copy_bytes(write.dst, params.payload + write.src_offset, write.nbytes,
               threadIdx.x % kThreadsPerWrite, kThreadsPerWrite);
  }
}

}  // namespace staging::kernels
