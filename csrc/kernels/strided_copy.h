// Copies a strided block of up to eight dimensions: each source element to its destination.
//
// Purpose: what cudaMemcpyAsync cannot say, transposes and gaps, in one launch. Either side
//   may be pinned host memory, through its device mapping.
// Thread-safety: stateless; each element is written once, by one thread.
#pragma once

#include <cstdint>

#include "runtime/runtime.h"

namespace staging::kernels {

inline constexpr int kStridedCopyMaxDims = 8;

struct StridedCopyParams {
  const unsigned char* src;
  unsigned char* dst;
  std::int64_t element_count;
  int ndim;
  int element_nbytes;  // 1, 2, 4, 8 or 16, and both sides are aligned to it
  std::int64_t sizes[kStridedCopyMaxDims];
  std::int64_t src_strides_nbytes[kStridedCopyMaxDims];
  std::int64_t dst_strides_nbytes[kStridedCopyMaxDims];
};

const Kernel& strided_copy() noexcept;

// Enqueues the copy on `stream`; waits for nothing. `params` is copied at launch.
void launch_strided_copy(Runtime& runtime, int device, StreamHandle stream,
                         StridedCopyParams params);

}  // namespace staging::kernels
