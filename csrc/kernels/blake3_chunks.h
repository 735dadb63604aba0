// Hashes the chunks of many byte sequences, and reduces each block's chunks to one node.
//
// Purpose: nearly all of BLAKE3's work, one thread a chunk. A sequence of one block (up to
//   128 KiB) is finished here; the others leave a node a block for blake3_tree_kernel.
//   A sequence is plain bytes, or a strided tensor read in its logical order through an
//   index map.
// Thread-safety: stateless; a node or digest is written once, by one thread.
#pragma once

#include <cstdint>

#include "kernels/blake3_node.h"
#include "runtime/runtime.h"

namespace staging::kernels {

inline constexpr unsigned kBlake3ChunksPerBlock = 128;  // and threads
inline constexpr std::uint64_t kBlake3GridBlockNbytes =
    std::uint64_t{kBlake3ChunksPerBlock} * kBlake3ChunkNbytes;
// Together under the 4 KiB that every driver takes as kernel parameters.
inline constexpr int kBlake3MaxSegments = 64;
inline constexpr int kBlake3MaxDims = 80;

// One dimension of a strided sequence, in units. A linear index n below 2^31 splits into
//   n / size == (mulhi(n, multiplier) + n) >> shift, which goes to the next dimension, and
//   n % size, which moves the address by stride_nbytes each.
struct Blake3Dim {
  std::uint32_t size;
  std::uint32_t multiplier;
  std::uint32_t shift;
  std::int64_t stride_nbytes;
};

struct Blake3Segment {
  const unsigned char* src;
  std::uint64_t nbytes;
  std::uint32_t first_block;  // of the grid
  std::uint32_t digest;       // which of the digests is this one's
  // Of a strided segment: the product of all sizes but the outermost one's. Under
  // kBlake3MaxInnerUnits.
  std::uint32_t inner_units;
  // Bytes are read in units of 1 << unit_log2 (at most 16), and src is aligned to it. Of a
  // strided segment every stride and nbytes are multiples too.
  std::uint8_t unit_log2;
  std::uint8_t ndim;       // 0: contiguous
  std::uint8_t first_dim;  // in dims, innermost first
};
// What a block adds to an index below the product stays below 2^31.
inline constexpr std::uint32_t kBlake3MaxInnerUnits =
    (std::uint32_t{1} << 31) - static_cast<std::uint32_t>(kBlake3GridBlockNbytes);

struct Blake3ChunksParams {
  Blake3Node* nodes;    // one for each block of the grid
  Blake3Node* digests;  // of segments that are one block
  int segment_count;
  Blake3Segment segments[kBlake3MaxSegments];
  Blake3Dim dims[kBlake3MaxDims];
};
static_assert(sizeof(Blake3ChunksParams) <= 4096);

const Kernel& blake3_chunks() noexcept;

// Enqueues `blocks` blocks on `stream`; waits for nothing. `params` is copied at launch.
void launch_blake3_chunks(Runtime& runtime, int device, StreamHandle stream, unsigned blocks,
                          Blake3ChunksParams params);

}  // namespace staging::kernels
