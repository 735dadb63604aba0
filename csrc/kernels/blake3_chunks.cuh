// The body of blake3_chunks_kernel. See blake3_chunks.h.
//
// A chunk is 1 KiB, so threads that read their own chunks would touch 32 cache lines at a
// time. Instead the 32 threads of a warp load their 32 chunks' next message blocks
// together, 16 bytes each and neighbours side by side, and swap them through shared
// memory. The loads of the next message blocks are in flight while the present ones are
// compressed.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/blake3_chunks.h"
#include "kernels/blake3_compress.cuh"
#include "kernels/blake3_reduce.cuh"
#include "kernels/kernel.h"

namespace staging::kernels {

namespace detail {

inline constexpr unsigned kWarpSize = 32;
inline constexpr unsigned kQuadsPerBlock = kBlake3BlockNbytes / 16;
inline constexpr unsigned kWarpNbytes = kWarpSize * kBlake3ChunkNbytes;

struct alignas(16) Blake3Quad {
  std::uint32_t words[4];
};

template <typename Unit>
STAGING_DEVICE void move_unit(void* to, const void* from) {
#if defined(__CUDA_ARCH__)
  *static_cast<Unit*>(to) = *static_cast<const Unit*>(from);
#else
  std::memcpy(to, from, sizeof(Unit));
#endif
}

// Threads of a warp swap data through shared memory. On the host all threads of the block
// meet, which is more than is needed: they run the same steps.
STAGING_DEVICE void warp_barrier() {
#if defined(__CUDA_ARCH__)
  __syncwarp();
#else
  __syncthreads();
#endif
}

// Where quad `quad` of a warp's row (thread) `row` is staged. The columns are swapped so
// that neither loads (four rows of a column) nor stores (rows side by side) meet in a bank.
STAGING_DEVICE unsigned staged_quad(unsigned row, unsigned quad) {
  return row * kQuadsPerBlock + (quad ^ (row >> 1 & 3));
}

// The part of a segment that a block of the grid hashes.
struct Blake3Span {
  const unsigned char* src;  // where the span begins; of a strided segment where that does
  std::uint32_t nbytes;
  // Of a strided segment, where the span begins: an index for the outermost dimension, and
  // what is left, in units, for the others.
  std::uint64_t outer;
  std::uint32_t inner;
};

STAGING_DEVICE Blake3Span span_of_block(const Blake3Segment& segment, unsigned block) {
  const std::uint64_t begin = block * kBlake3GridBlockNbytes;
  const std::uint64_t rest = segment.nbytes - begin;
  Blake3Span span{
      segment.src,
      static_cast<std::uint32_t>(rest < kBlake3GridBlockNbytes ? rest : kBlake3GridBlockNbytes), 0,
      0};
  if (segment.ndim == 0) {
    span.src += begin;
  } else {
    const std::uint64_t unit = begin >> segment.unit_log2;
    span.outer = unit / segment.inner_units;
    span.inner = static_cast<std::uint32_t>(unit % segment.inner_units);
  }
  return span;
}

STAGING_DEVICE const unsigned char* strided_address(const Blake3ChunksParams& params,
                                                    const Blake3Segment& segment,
                                                    const Blake3Span& span, std::uint32_t offset) {
  std::uint32_t n = span.inner + (offset >> segment.unit_log2);
  const unsigned char* address = span.src;
  const int outermost = segment.first_dim + segment.ndim - 1;
  STAGING_UNROLL(1)
  for (int d = segment.first_dim; d < outermost; ++d) {
    const Blake3Dim& dim = params.dims[d];
    const std::uint32_t high =
        static_cast<std::uint32_t>(static_cast<std::uint64_t>(n) * dim.multiplier >> 32);
    const std::uint32_t quotient = (high + n) >> dim.shift;
    address += (n - quotient * dim.size) * dim.stride_nbytes;
    n = quotient;
  }
  return address + static_cast<std::int64_t>(span.outer + n) * params.dims[outermost].stride_nbytes;
}

// Stages the message blocks at `step` of the warp's chunks, whatever their layout; zeros
// behind the end. The warp's first chunk is at `warp_begin` of the span.
template <typename Unit>
STAGING_DEVICE void stage_units(Blake3Quad* staged, const Blake3ChunksParams& params,
                                const Blake3Segment& segment, const Blake3Span& span,
                                std::uint32_t warp_begin, unsigned step, unsigned lane) {
  constexpr unsigned kUnits = kBlake3BlockNbytes / sizeof(Unit);
  // Several loads in flight at a time.
  STAGING_UNROLL(4)
  for (unsigned i = 0; i < kUnits; ++i) {
    const unsigned k = lane + i * kWarpSize;
    const unsigned row = k / kUnits;
    const unsigned column = k % kUnits * sizeof(Unit);
    const std::uint32_t offset =
        warp_begin + row * kBlake3ChunkNbytes + step * kBlake3BlockNbytes + column;
    Unit unit{};
    if (offset + sizeof(Unit) <= span.nbytes) {
      move_unit<Unit>(&unit, segment.ndim == 0 ? span.src + offset
                                               : strided_address(params, segment, span, offset));
    }
    unsigned char* to =
        reinterpret_cast<unsigned char*>(&staged[staged_quad(row, column / 16)]) + column % 16;
    move_unit<Unit>(to, &unit);
    // Plain bytes may end within a unit.
    if (sizeof(Unit) > 1 && offset < span.nbytes && offset + sizeof(Unit) > span.nbytes) {
      STAGING_UNROLL(1)
      for (unsigned b = 0; offset + b < span.nbytes; ++b) to[b] = span.src[offset + b];
    }
  }
}

STAGING_DEVICE const Blake3Segment& segment_of_block(const Blake3ChunksParams& params,
                                                     unsigned block) {
  int low = 0;
  for (int high = params.segment_count; high - low > 1;) {
    const int middle = (low + high) / 2;
    if (params.segments[middle].first_block <= block) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return params.segments[low];
}

// One thread's chunk.
struct Blake3Chunk {
  std::uint64_t counter;  // its index in the segment
  std::uint32_t nbytes;
  unsigned steps;            // message blocks; 0 where the thread has no chunk
  std::uint32_t root_flags;  // for the last message block
};

STAGING_DEVICE void read_message(std::uint32_t (&message)[16], const Blake3Quad* staged,
                                 unsigned lane) {
  for (unsigned q = 0; q < kQuadsPerBlock; ++q) {
    const Blake3Quad quad = staged[staged_quad(lane, q)];
    for (unsigned w = 0; w < 4; ++w) message[4 * q + w] = quad.words[w];
  }
}

STAGING_DEVICE void compress_step(Blake3Node& node, const std::uint32_t (&message)[16],
                                  const Blake3Chunk& chunk, unsigned step) {
  const bool last = step + 1 == chunk.steps;
  const std::uint32_t flags =
      (step == 0 ? kBlake3ChunkStart : 0) | (last ? kBlake3ChunkEnd | chunk.root_flags : 0);
  blake3_compress(node, message, chunk.counter,
                  last ? chunk.nbytes - step * kBlake3BlockNbytes : kBlake3BlockNbytes, flags);
}

// 32 whole chunks of contiguous, aligned bytes at `src`: four quads a thread and step, from
// rows lane / 4 + 0, 8, 16, 24.
STAGING_DEVICE void hash_whole_chunks(Blake3Node& node, Blake3Quad* staged,
                                      const unsigned char* src, const Blake3Chunk& chunk,
                                      unsigned lane) {
  constexpr unsigned kRowStep = kWarpSize / kQuadsPerBlock;
  src += lane / kQuadsPerBlock * kBlake3ChunkNbytes + lane % kQuadsPerBlock * sizeof(Blake3Quad);
  Blake3Quad fetched[kQuadsPerBlock];
  for (unsigned i = 0; i < kQuadsPerBlock; ++i) {
    move_unit<Blake3Quad>(&fetched[i], src + i * kRowStep * kBlake3ChunkNbytes);
  }
  STAGING_UNROLL(1)
  for (unsigned step = 0; step < kBlake3BlocksPerChunk; ++step) {
    for (unsigned i = 0; i < kQuadsPerBlock; ++i) {
      staged[staged_quad(lane / kQuadsPerBlock + i * kRowStep, lane % kQuadsPerBlock)] = fetched[i];
    }
    warp_barrier();
    std::uint32_t message[16];
    read_message(message, staged, lane);
    warp_barrier();
    if (step + 1 < kBlake3BlocksPerChunk) {
      src += kBlake3BlockNbytes;
      for (unsigned i = 0; i < kQuadsPerBlock; ++i) {
        move_unit<Blake3Quad>(&fetched[i], src + i * kRowStep * kBlake3ChunkNbytes);
      }
    }
    compress_step(node, message, chunk, step);
  }
}

// Any other chunks; `steps` is the longest one's.
STAGING_DEVICE void hash_any_chunks(Blake3Node& node, Blake3Quad* staged,
                                    const Blake3ChunksParams& params, const Blake3Segment& segment,
                                    const Blake3Span& span, std::uint32_t warp_begin,
                                    unsigned steps, const Blake3Chunk& chunk, unsigned lane) {
  STAGING_UNROLL(1)
  for (unsigned step = 0; step < steps; ++step) {
#define STAGING_STAGE(unit) stage_units<unit>(staged, params, segment, span, warp_begin, step, lane)
    switch (segment.unit_log2) {
      case 4:
        STAGING_STAGE(Blake3Quad);
        break;
      case 3:
        STAGING_STAGE(std::uint64_t);
        break;
      case 2:
        STAGING_STAGE(std::uint32_t);
        break;
      case 1:
        STAGING_STAGE(std::uint16_t);
        break;
      default:
        STAGING_STAGE(std::uint8_t);
        break;
    }
#undef STAGING_STAGE
    warp_barrier();
    std::uint32_t message[16];
    read_message(message, staged, lane);
    warp_barrier();
    if (step < chunk.steps) compress_step(node, message, chunk, step);
  }
}

// Message blocks of so many bytes; the empty sequence has one, which is empty.
STAGING_DEVICE unsigned blake3_steps(std::uint32_t nbytes) {
  if (nbytes == 0) return 1;
  if (nbytes > kBlake3ChunkNbytes) nbytes = kBlake3ChunkNbytes;
  return (nbytes + kBlake3BlockNbytes - 1) / kBlake3BlockNbytes;
}

}  // namespace detail

STAGING_KERNEL void __launch_bounds__(kBlake3ChunksPerBlock, 6)
    blake3_chunks_kernel(STAGING_PARAMS(Blake3ChunksParams) params) {
  using detail::kQuadsPerBlock, detail::kWarpSize, detail::kWarpNbytes;
  __shared__ detail::Blake3Quad staged_quads[kBlake3ChunksPerBlock * kQuadsPerBlock];
  __shared__ Blake3Node nodes[kBlake3ChunksPerBlock];

  const Blake3Segment& segment = detail::segment_of_block(params, blockIdx.x);
  const unsigned block = blockIdx.x - segment.first_block;
  const detail::Blake3Span span = detail::span_of_block(segment, block);
  const bool single = segment.nbytes <= kBlake3GridBlockNbytes;
  const unsigned chunks =
      span.nbytes == 0 ? 1 : (span.nbytes + kBlake3ChunkNbytes - 1) / kBlake3ChunkNbytes;

  detail::Blake3Chunk chunk{static_cast<std::uint64_t>(block) * kBlake3ChunksPerBlock + threadIdx.x,
                            0, 0, single && chunks == 1 ? kBlake3Root : 0};
  if (threadIdx.x < chunks) {
    const std::uint32_t rest = span.nbytes - threadIdx.x * kBlake3ChunkNbytes;
    chunk.nbytes = rest < kBlake3ChunkNbytes ? rest : kBlake3ChunkNbytes;
    chunk.steps = detail::blake3_steps(chunk.nbytes);
  }

  const unsigned lane = threadIdx.x % kWarpSize;
  const std::uint32_t warp_begin = threadIdx.x / kWarpSize * kWarpNbytes;
  detail::Blake3Quad* const staged =
      &staged_quads[threadIdx.x / kWarpSize * kWarpSize * kQuadsPerBlock];
  Blake3Node node = blake3_iv_node();
  if (segment.ndim == 0 && segment.unit_log2 == 4 && warp_begin + kWarpNbytes <= span.nbytes) {
    detail::hash_whole_chunks(node, staged, span.src + warp_begin, chunk, lane);
  } else {
    detail::hash_any_chunks(node, staged, params, segment, span, warp_begin,
                            detail::blake3_steps(span.nbytes), chunk, lane);
  }

  if (threadIdx.x < chunks) nodes[threadIdx.x] = node;
  blake3_reduce(nodes, chunks, single);
  if (threadIdx.x == 0) {
    (single ? params.digests[segment.digest] : params.nodes[blockIdx.x]) = nodes[0];
  }
}

}  // namespace staging::kernels
