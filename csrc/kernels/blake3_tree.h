// Reduces the nodes that blake3_chunks_kernel left, up to 1024 a block, to one node each.
//
// Purpose: the upper part of BLAKE3's tree; log1024 launches, two for 128 GiB. A sequence
//   whose nodes fit one block is finished: its root is the digest.
// Thread-safety: stateless; a node or digest is written once, by one thread.
#pragma once

#include <cstdint>

#include "kernels/blake3_node.h"
#include "runtime/runtime.h"

namespace staging::kernels {

inline constexpr unsigned kBlake3TreeThreads = 256;
inline constexpr unsigned kBlake3TreeNodesPerBlock = 1024;
inline constexpr int kBlake3MaxTreeSegments = 128;

struct Blake3TreeSegment {
  std::uint32_t first_node;
  std::uint32_t node_count;   // at least 2
  std::uint32_t first_block;  // of the grid
  std::uint32_t digest;       // which of the digests is this one's
};

struct Blake3TreeParams {
  const Blake3Node* nodes;
  Blake3Node* parents;  // one for each block of the grid; not the same memory as nodes
  Blake3Node* digests;  // of segments that are one block
  int segment_count;
  Blake3TreeSegment segments[kBlake3MaxTreeSegments];
};
static_assert(sizeof(Blake3TreeParams) <= 4096);

const Kernel& blake3_tree() noexcept;

// Enqueues `blocks` blocks on `stream`; waits for nothing. `params` is copied at launch.
void launch_blake3_tree(Runtime& runtime, int device, StreamHandle stream, unsigned blocks,
                        Blake3TreeParams params);

}  // namespace staging::kernels
