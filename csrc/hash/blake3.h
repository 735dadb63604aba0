// BLAKE3 on the host, portable and incremental.
//
// Purpose: the reference for the kernels, and the hash where no faster one is installed.
//   It shares the compression function with them (kernels/blake3_compress.cuh).
// Owner: a value; copies are independent. Thread-safety: as a value.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace staging {

using Blake3Digest = std::array<unsigned char, 32>;

class Blake3 {
 public:
  Blake3() noexcept;

  void update(const void* data, std::size_t nbytes) noexcept;
  // Of everything up to now; more may follow.
  Blake3Digest digest() const noexcept;

 private:
  using Node = std::array<std::uint32_t, 8>;

  void push_chunk() noexcept;

  // Nodes of whole subtrees to the left, the largest first: one for each bit of
  // chunk_count_. 2^54 chunks are all that 2^64 bytes have.
  std::array<Node, 54> subtrees_;
  std::uint64_t chunk_count_ = 0;  // in the subtrees
  // The chunk that is being filled. Whole message blocks of it are in chaining_value_, but
  // never the last: it is compressed with other flags.
  Node chaining_value_;
  unsigned compressed_blocks_ = 0;
  unsigned block_nbytes_ = 0;
  std::array<unsigned char, 64> block_{};
};

Blake3Digest blake3(const void* data, std::size_t nbytes) noexcept;

}  // namespace staging
