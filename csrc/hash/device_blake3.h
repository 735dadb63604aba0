// BLAKE3 of tensors in device memory: the plan, and its launches.
//
// Purpose: the digests of any number of tensors, contiguous or strided, with as few
//   launches as their sizes allow; the data stays where it is. One launch for up to 64
//   tensors of 128 KiB each, one more for each factor of 1024 in size.
// Owner: the plan owns nothing on the device. The caller keeps the tensors, the workspace
//   and the digests alive until the stream has passed.
// Thread-safety: a plan is immutable once made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "hash/index_map.h"
#include "kernels/blake3_chunks.h"
#include "kernels/blake3_tree.h"
#include "runtime/runtime.h"

namespace staging {

class DeviceBlake3 {
 public:
  static constexpr std::size_t kDigestNbytes = 32;

  // Whether the kernel can read it where it is. If not, pass a contiguous copy.
  static bool can_index(const IndexMap& map) noexcept;

  // Throws InvalidArgument for a tensor that cannot be indexed.
  explicit DeviceBlake3(std::span<const StridedBytes> tensors);

  // Device memory for enqueue(), aligned to 16 bytes, which may be reused in stream order.
  std::size_t workspace_nbytes() const noexcept { return workspace_nbytes_; }
  std::size_t launch_count() const noexcept { return chunks_.size() + tree_.size(); }

  // Enqueues the launches on `stream`; waits for nothing. `digests` is device memory for 32
  // bytes a tensor, in order, aligned to 16.
  void enqueue(Runtime& runtime, int device, StreamHandle stream, void* workspace,
               void* digests) const;

 private:
  // Nodes are counted from the workspace's begin.
  struct ChunksLaunch {
    kernels::Blake3ChunksParams params;
    std::uint64_t first_node;
    unsigned blocks;
  };
  struct TreeLaunch {
    kernels::Blake3TreeParams params;
    std::uint64_t first_node;
    std::uint64_t first_parent;
    unsigned blocks;
  };

  std::vector<ChunksLaunch> chunks_;
  std::vector<TreeLaunch> tree_;
  std::size_t workspace_nbytes_ = 0;
};

}  // namespace staging
