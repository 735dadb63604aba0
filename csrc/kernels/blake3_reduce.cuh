// Reduces BLAKE3 nodes within one thread block. Part of the chunk and the tree kernel.
//
// Purpose: BLAKE3's tree pairs neighbours level by level, and an odd last node moves up
//   unchanged; so a group of 2^k neighbours that starts at a multiple of 2^k reduces by
//   itself to the node that stands for it k levels up.
// Owner: `nodes` is the block's shared memory. Thread-safety: every thread of the block
//   calls with the same arguments.
#pragma once

#include <cstdint>

#include "kernels/blake3_compress.cuh"

namespace staging::kernels {

// Leaves the one node above `nodes[0..count)` in nodes[0]. Starts with a barrier, so that the
// caller may have just written nodes; ends with one too. `root`: this is the whole tree.
STAGING_DEVICE void blake3_reduce(Blake3Node* nodes, unsigned count, bool root) {
  __syncthreads();
  while (count > 1) {
    const unsigned pairs = count / 2;
    const std::uint32_t flags = root && count == 2 ? kBlake3Root : 0;
    // Each round writes below what it reads, and later rounds read further up still.
    for (unsigned first = 0; first < (count + 1) / 2; first += blockDim.x) {
      const unsigned i = first + threadIdx.x;
      Blake3Node node{};
      if (i < pairs) {
        node = blake3_parent(nodes[2 * i], nodes[2 * i + 1], flags);
      } else if (i == pairs && count % 2 == 1) {
        node = nodes[count - 1];
      }
      __syncthreads();
      if (i < (count + 1) / 2) nodes[i] = node;
    }
    __syncthreads();
    count = (count + 1) / 2;
  }
}

}  // namespace staging::kernels
