#include "hash/device_blake3.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "support/error.h"

namespace staging {

namespace {

using kernels::Blake3ChunksParams;
using kernels::Blake3Dim;
using kernels::Blake3Node;
using kernels::Blake3Segment;
using kernels::Blake3TreeParams;
using kernels::Blake3TreeSegment;

std::uint64_t divide_up(std::uint64_t n, std::uint64_t divisor) {
  return n / divisor + (n % divisor != 0);
}

// For n < 2^31: n / size == (mulhi(n, multiplier) + n) >> shift. Granlund and Montgomery,
// "Division by invariant integers using multiplication", 1994.
Blake3Dim kernel_dim(const IndexMap::Dim& dim) {
  const std::uint64_t size = static_cast<std::uint64_t>(dim.size);
  const int shift = std::bit_width(size - 1);
  const std::uint64_t multiplier = (((std::uint64_t{1} << shift) - size) << 32) / size + 1;
  return {static_cast<std::uint32_t>(size), static_cast<std::uint32_t>(multiplier),
          static_cast<std::uint32_t>(shift), dim.stride_nbytes};
}

// The product of all sizes but the outermost one's; saturated.
std::uint64_t inner_units(const IndexMap& map) {
  std::uint64_t product = 1;
  for (std::size_t d = 0; d + 1 < map.dims.size(); ++d) {
    const std::uint64_t size = static_cast<std::uint64_t>(map.dims[d].size);
    if (product > std::numeric_limits<std::uint64_t>::max() / size) {
      return std::numeric_limits<std::uint64_t>::max();
    }
    product *= size;
  }
  return product;
}

}  // namespace

bool DeviceBlake3::can_index(const IndexMap& map) noexcept {
  return map.dims.size() <= kernels::kBlake3MaxDims &&
         inner_units(map) < kernels::kBlake3MaxInnerUnits;
}

DeviceBlake3::DeviceBlake3(std::span<const StridedBytes> tensors) {
  constexpr std::uint64_t kMaxGrid = std::numeric_limits<std::int32_t>::max();
  // What the next level of trees starts from.
  std::vector<Blake3TreeSegment> pending;
  std::uint64_t node_count = 0;

  int dim_count = 0;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const IndexMap map(tensors[t]);
    STAGING_EXPECTS(can_index(map), "tensor ", t, " has ", map.dims.size(),
                    " dimensions that do not lie together and ", map.nbytes,
                    " bytes, too many to index; pass a contiguous copy");
    const std::uint64_t blocks =
        std::max<std::uint64_t>(1, divide_up(map.nbytes, kernels::kBlake3GridBlockNbytes));
    STAGING_EXPECTS(blocks <= kMaxGrid, "tensor ", t, " has ", map.nbytes,
                    " bytes; the kernel takes up to ", kMaxGrid, " blocks of 128 KiB");
    const int ndim = static_cast<int>(map.dims.size());
    if (chunks_.empty() || chunks_.back().params.segment_count == kernels::kBlake3MaxSegments ||
        dim_count + ndim > kernels::kBlake3MaxDims || chunks_.back().blocks + blocks > kMaxGrid) {
      chunks_.push_back({{}, node_count, 0});
      dim_count = 0;
    }
    ChunksLaunch& launch = chunks_.back();
    Blake3ChunksParams& params = launch.params;
    params.segments[params.segment_count++] = {static_cast<const unsigned char*>(tensors[t].data),
                                               map.nbytes,
                                               launch.blocks,
                                               static_cast<std::uint32_t>(t),
                                               static_cast<std::uint32_t>(inner_units(map)),
                                               static_cast<std::uint8_t>(map.unit_log2),
                                               static_cast<std::uint8_t>(ndim),
                                               static_cast<std::uint8_t>(dim_count)};
    for (const IndexMap::Dim& dim : map.dims) {
      // The outermost is never divided by, and may be larger than 32 bits.
      params.dims[dim_count++] =
          &dim == &map.dims.back() ? Blake3Dim{0, 0, 0, dim.stride_nbytes} : kernel_dim(dim);
    }
    if (blocks > 1) {
      pending.push_back({static_cast<std::uint32_t>(node_count), static_cast<std::uint32_t>(blocks),
                         0, static_cast<std::uint32_t>(t)});
    }
    launch.blocks += static_cast<unsigned>(blocks);
    node_count += blocks;
    STAGING_EXPECTS(node_count <= std::numeric_limits<std::uint32_t>::max(),
                    "the tensors have more than ", std::numeric_limits<std::uint32_t>::max(),
                    " blocks of 128 KiB together; digest them in several calls");
  }

  // Levels of the trees use the two halves of the workspace in turn.
  const std::uint64_t second_half = node_count;
  std::uint64_t second_count = 0;
  for (bool from_first = true; !pending.empty(); from_first = !from_first) {
    std::vector<Blake3TreeSegment> next;
    std::uint64_t parent_count = 0;
    bool begin_launch = true;
    for (Blake3TreeSegment segment : pending) {
      const std::uint32_t blocks = static_cast<std::uint32_t>(
          divide_up(segment.node_count, kernels::kBlake3TreeNodesPerBlock));
      if (begin_launch || tree_.back().params.segment_count == kernels::kBlake3MaxTreeSegments) {
        tree_.push_back(
            {{}, from_first ? 0 : second_half, (from_first ? second_half : 0) + parent_count, 0});
        begin_launch = false;
      }
      TreeLaunch& launch = tree_.back();
      segment.first_block = launch.blocks;
      launch.params.segments[launch.params.segment_count++] = segment;
      launch.blocks += blocks;
      if (blocks > 1) {
        next.push_back({static_cast<std::uint32_t>(parent_count), blocks, 0, segment.digest});
      }
      parent_count += blocks;
    }
    if (from_first) second_count = std::max(second_count, parent_count);
    pending = std::move(next);
  }
  // A single tensor of one block needs no nodes.
  workspace_nbytes_ = tree_.empty() ? 0 : (second_half + second_count) * sizeof(Blake3Node);
}

void DeviceBlake3::enqueue(Runtime& runtime, int device, StreamHandle stream, void* workspace,
                           void* digests) const {
  Blake3Node* const nodes = static_cast<Blake3Node*>(workspace);
  for (const ChunksLaunch& launch : chunks_) {
    Blake3ChunksParams params = launch.params;
    // Without trees no node is kept, and there is no workspace.
    params.nodes = tree_.empty() ? nullptr : nodes + launch.first_node;
    params.digests = static_cast<Blake3Node*>(digests);
    kernels::launch_blake3_chunks(runtime, device, stream, launch.blocks, params);
  }
  for (const TreeLaunch& launch : tree_) {
    Blake3TreeParams params = launch.params;
    params.nodes = nodes + launch.first_node;
    params.parents = nodes + launch.first_parent;
    params.digests = static_cast<Blake3Node*>(digests);
    kernels::launch_blake3_tree(runtime, device, stream, launch.blocks, params);
  }
}

}  // namespace staging
