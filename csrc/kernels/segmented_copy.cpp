#include "kernels/segmented_copy.h"

#include <algorithm>
#include <bit>

#include "kernels/segmented_copy.cuh"
#include "support/error.h"

namespace staging::kernels {

STAGING_DEFINE_KERNEL(segmented_copy_small, /*barriers=*/false)
STAGING_DEFINE_KERNEL(segmented_copy_medium, /*barriers=*/false)
STAGING_DEFINE_KERNEL(segmented_copy_large, /*barriers=*/false)

namespace {

constexpr std::uint64_t kMinThreads = 32;
constexpr std::uint64_t kMaxThreads = 256;
// Enough to fill a large GPU; the threads of a segment stride over the rest.
constexpr std::uint64_t kMaxBlocksPerSegment = 1024;

template <typename Params>
void launch(const Kernel& kernel, Runtime& runtime, int device, StreamHandle stream,
            std::span<const CopyItem> items) {
  std::size_t largest = 0;
  for (const CopyItem& item : items) largest = std::max(largest, item.nbytes);
  // Small segments get small blocks, so that few threads idle.
  const std::uint64_t threads = std::clamp<std::uint64_t>(
      std::bit_ceil((largest + sizeof(Word16) - 1) / sizeof(Word16)), kMinThreads, kMaxThreads);
  const std::uint64_t nbytes_per_block = threads * sizeof(Word16) * kWordsInFlight;

  Params params;  // NOLINT: what is behind `count` is not read
  params.count = static_cast<std::uint32_t>(items.size());
  std::uint64_t blocks = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    params.first_block[i] = static_cast<std::uint32_t>(blocks);
    params.segments[i] = {static_cast<const unsigned char*>(items[i].src),
                          static_cast<unsigned char*>(items[i].dst), items[i].nbytes};
    blocks += std::clamp<std::uint64_t>((items[i].nbytes + nbytes_per_block - 1) / nbytes_per_block,
                                        1, kMaxBlocksPerSegment);
  }
  params.first_block[items.size()] = static_cast<std::uint32_t>(blocks);
  void* args[] = {&params};
  runtime.launch(device, kernel, {static_cast<unsigned>(blocks), 1, 1},
                 {static_cast<unsigned>(threads), 1, 1}, 0, args, stream);
}

}  // namespace

#if !defined(STAGING_WITH_CUDA)
std::size_t segmented_copy_max_param_nbytes() noexcept {
  return sizeof(SegmentedCopyLarge);
}
#endif

std::size_t segmented_copy_capacity() noexcept {
  return segmented_copy_max_param_nbytes() >= sizeof(SegmentedCopyLarge)
             ? SegmentedCopyLarge::capacity
             : SegmentedCopyMedium::capacity;
}

void launch_segmented_copy(Runtime& runtime, int device, StreamHandle stream,
                           std::span<const CopyItem> items) {
  if (items.empty()) return;
  STAGING_EXPECTS(items.size() <= segmented_copy_capacity(), "items must be at most ",
                  segmented_copy_capacity(), ", got ", items.size());
  if (items.size() <= SegmentedCopySmall::capacity) {
    launch<SegmentedCopySmall>(segmented_copy_small(), runtime, device, stream, items);
  } else if (items.size() <= SegmentedCopyMedium::capacity) {
    launch<SegmentedCopyMedium>(segmented_copy_medium(), runtime, device, stream, items);
  } else {
    launch<SegmentedCopyLarge>(segmented_copy_large(), runtime, device, stream, items);
  }
}

}  // namespace staging::kernels
