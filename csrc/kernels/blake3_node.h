// The nodes of BLAKE3's tree, and the sizes that it is made of.
#pragma once

#include <cstdint>

namespace staging::kernels {

inline constexpr int kBlake3BlockNbytes = 64;
inline constexpr int kBlake3ChunkNbytes = 1024;
inline constexpr int kBlake3BlocksPerChunk = kBlake3ChunkNbytes / kBlake3BlockNbytes;
inline constexpr int kBlake3DigestNbytes = 32;

// A chaining value: of a chunk, or of a parent in the tree. The root's is the digest.
struct alignas(16) Blake3Node {
  std::uint32_t words[8];
};

}  // namespace staging::kernels
