// Copies many runs of bytes in one launch.
//
// Purpose: a step's small arrays, from one pinned slot to where each of them lives, for the
//   price of a launch. Either side may be pinned host memory, through its device mapping. The
//   runs travel as kernel parameters: no second upload says where the bytes go.
// Thread-safety: stateless. Runs of one launch are copied in no particular order: no byte that
//   one writes may be read or written by another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/runtime.h"

namespace staging::kernels {

struct CopySegment {
  const unsigned char* src;
  unsigned char* dst;
  std::uint64_t nbytes;
};

// The whole of it is copied at each launch, so there are sizes to choose from.
template <std::uint32_t kCapacity>
struct SegmentedCopyParams {
  static constexpr std::uint32_t capacity = kCapacity;
  std::uint32_t count;
  std::uint32_t first_block[kCapacity + 1];  // of each segment, and the number of blocks
  CopySegment segments[kCapacity];
};
using SegmentedCopySmall = SegmentedCopyParams<20>;
using SegmentedCopyMedium = SegmentedCopyParams<146>;
using SegmentedCopyLarge = SegmentedCopyParams<1168>;
// CUDA's limits on the parameters of a kernel: 4096 bytes, and 32764 since CUDA 12.1.
static_assert(sizeof(SegmentedCopyMedium) <= 4096);
static_assert(sizeof(SegmentedCopyLarge) <= 32764);

const Kernel& segmented_copy_small() noexcept;
const Kernel& segmented_copy_medium() noexcept;
const Kernel& segmented_copy_large() noexcept;

// The most bytes of parameters that this build's kernels may have, on every driver that it
// runs on.
std::size_t segmented_copy_max_param_nbytes() noexcept;
// The most segments that one launch takes.
std::size_t segmented_copy_capacity() noexcept;

// Enqueues the copies on `stream` in one launch; waits for nothing. There are at most
// segmented_copy_capacity() items, each of at least one byte, at addresses of the device.
void launch_segmented_copy(Runtime& runtime, int device, StreamHandle stream,
                           std::span<const CopyItem> items);

}  // namespace staging::kernels
