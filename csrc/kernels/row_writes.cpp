#include "kernels/row_writes.h"

#include <algorithm>

#include "kernels/row_writes.cuh"

namespace staging::kernels {

STAGING_DEFINE_KERNEL(row_writes, /*barriers=*/false)

void launch_row_writes(Runtime& runtime, int device, StreamHandle stream,
                       const RowWritesParams& params) {
  if (params.count == 0) return;
  constexpr std::uint32_t kMaxWriters = 8;
  // Enough blocks to fill a large GPU; the kernel strides over the rest.
  constexpr std::uint32_t kMaxBlocks = 1024;
  const std::uint32_t writers = std::min(kMaxWriters, params.count);
  const std::uint32_t blocks = std::min(kMaxBlocks, (params.count + writers - 1) / writers);
  RowWritesParams copy = params;
  void* args[] = {&copy};
  runtime.launch(device, row_writes(), {blocks, 1, 1}, {writers * kThreadsPerWrite, 1, 1}, 0, args,
                 stream);
}

}  // namespace staging::kernels
