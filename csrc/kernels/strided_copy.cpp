#include "kernels/strided_copy.h"

#include <algorithm>

#include "kernels/strided_copy.cuh"

namespace staging::kernels {

STAGING_DEFINE_KERNEL(strided_copy, /*barriers=*/false)

void launch_strided_copy(Runtime& runtime, int device, StreamHandle stream,
                         StridedCopyParams params) {
  if (params.element_count == 0) return;
  constexpr std::int64_t kThreads = 256;
  // Enough blocks to fill a large GPU; the kernel strides over the rest.
  constexpr std::int64_t kMaxBlocks = 4096;
  const std::int64_t blocks =
      std::min(kMaxBlocks, (params.element_count + kThreads - 1) / kThreads);
  void* args[] = {&params};
  runtime.launch(device, strided_copy(), {static_cast<unsigned>(blocks), 1, 1},
                 {static_cast<unsigned>(kThreads), 1, 1}, 0, args, stream);
}

}  // namespace staging::kernels
