// The body of blake3_tree_kernel. See blake3_tree.h.
#pragma once

#include <cstdint>

#include "kernels/blake3_reduce.cuh"
#include "kernels/blake3_tree.h"
#include "kernels/kernel.h"

namespace staging::kernels {

STAGING_KERNEL void __launch_bounds__(kBlake3TreeThreads)
    blake3_tree_kernel(STAGING_PARAMS(Blake3TreeParams) params) {
  __shared__ Blake3Node nodes[kBlake3TreeNodesPerBlock];

  int low = 0;
  for (int high = params.segment_count; high - low > 1;) {
    const int middle = (low + high) / 2;
    if (params.segments[middle].first_block <= blockIdx.x) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const Blake3TreeSegment& segment = params.segments[low];
  const std::uint32_t begin = (blockIdx.x - segment.first_block) * kBlake3TreeNodesPerBlock;
  const std::uint32_t rest = segment.node_count - begin;
  const unsigned count = rest < kBlake3TreeNodesPerBlock ? rest : kBlake3TreeNodesPerBlock;
  const bool single = segment.node_count <= kBlake3TreeNodesPerBlock;

  for (unsigned i = threadIdx.x; i < count; i += blockDim.x) {
    nodes[i] = params.nodes[segment.first_node + begin + i];
  }
  blake3_reduce(nodes, count, single);
  if (threadIdx.x == 0) {
    (single ? params.digests[segment.digest] : params.parents[blockIdx.x]) = nodes[0];
  }
}

}  // namespace staging::kernels
