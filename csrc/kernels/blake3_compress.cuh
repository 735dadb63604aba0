// BLAKE3's compression function, and how chunks and parents use it.
//
// Purpose: the one implementation that the host hasher and the kernels share. After the
//   BLAKE3 specification (github.com/BLAKE3-team/BLAKE3-specs), default hash mode, 32 bytes
//   of output.
// Owner: nobody; functions of their arguments. Thread-safety: no state.
//
// The machine is little-endian, as BLAKE3's words are: every GPU, and the hosts we build on.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/blake3_node.h"
#include "kernels/kernel.h"

namespace staging::kernels {

static_assert(std::endian::native == std::endian::little, "BLAKE3's words are little-endian");

inline constexpr std::uint32_t kBlake3ChunkStart = 1;
inline constexpr std::uint32_t kBlake3ChunkEnd = 2;
inline constexpr std::uint32_t kBlake3Parent = 4;
inline constexpr std::uint32_t kBlake3Root = 8;

STAGING_HOST_DEVICE constexpr std::uint32_t blake3_iv(int i) {
  constexpr std::uint32_t kIv[8] = {0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A,
                                    0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19};
  return kIv[i];
}

STAGING_HOST_DEVICE Blake3Node blake3_iv_node() {
  return {{blake3_iv(0), blake3_iv(1), blake3_iv(2), blake3_iv(3), blake3_iv(4), blake3_iv(5),
           blake3_iv(6), blake3_iv(7)}};
}

namespace detail {

// Which message word stands at place `i` of round `round`: the permutation, applied
// `round` times. Known when compiling, so that the words stay in registers.
STAGING_HOST_DEVICE constexpr int blake3_message_word(int round, int i) {
  constexpr int kPermutation[16] = {2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8};
  for (int r = 0; r < round; ++r) i = kPermutation[i];
  return i;
}

STAGING_HOST_DEVICE std::uint32_t rotate_right(std::uint32_t x, int n) {
  return (x >> n) | (x << (32 - n));
}

STAGING_HOST_DEVICE void blake3_mix(std::uint32_t& a, std::uint32_t& b, std::uint32_t& c,
                                    std::uint32_t& d, std::uint32_t x, std::uint32_t y) {
  a = a + b + x;
  d = rotate_right(d ^ a, 16);
  c = c + d;
  b = rotate_right(b ^ c, 12);
  a = a + b + y;
  d = rotate_right(d ^ a, 8);
  c = c + d;
  b = rotate_right(b ^ c, 7);
}

template <int kRound>
STAGING_HOST_DEVICE void blake3_round(std::uint32_t (&v)[16], const std::uint32_t (&m)[16]) {
#define STAGING_BLAKE3_MIX(i, a, b, c, d)                        \
  {                                                              \
    constexpr int kX = blake3_message_word(kRound, 2 * (i));     \
    constexpr int kY = blake3_message_word(kRound, 2 * (i) + 1); \
    blake3_mix(v[a], v[b], v[c], v[d], m[kX], m[kY]);            \
  }
  STAGING_BLAKE3_MIX(0, 0, 4, 8, 12)
  STAGING_BLAKE3_MIX(1, 1, 5, 9, 13)
  STAGING_BLAKE3_MIX(2, 2, 6, 10, 14)
  STAGING_BLAKE3_MIX(3, 3, 7, 11, 15)
  STAGING_BLAKE3_MIX(4, 0, 5, 10, 15)
  STAGING_BLAKE3_MIX(5, 1, 6, 11, 12)
  STAGING_BLAKE3_MIX(6, 2, 7, 8, 13)
  STAGING_BLAKE3_MIX(7, 3, 4, 9, 14)
#undef STAGING_BLAKE3_MIX
}

}  // namespace detail

// Replaces `node` by the chaining value after one block of message words.
STAGING_HOST_DEVICE void blake3_compress(Blake3Node& node, const std::uint32_t (&message)[16],
                                         std::uint64_t counter, std::uint32_t block_nbytes,
                                         std::uint32_t flags) {
  std::uint32_t v[16] = {node.words[0],
                         node.words[1],
                         node.words[2],
                         node.words[3],
                         node.words[4],
                         node.words[5],
                         node.words[6],
                         node.words[7],
                         blake3_iv(0),
                         blake3_iv(1),
                         blake3_iv(2),
                         blake3_iv(3),
                         static_cast<std::uint32_t>(counter),
                         static_cast<std::uint32_t>(counter >> 32),
                         block_nbytes,
                         flags};
  detail::blake3_round<0>(v, message);
  detail::blake3_round<1>(v, message);
  detail::blake3_round<2>(v, message);
  detail::blake3_round<3>(v, message);
  detail::blake3_round<4>(v, message);
  detail::blake3_round<5>(v, message);
  detail::blake3_round<6>(v, message);
  for (int i = 0; i < 8; ++i) node.words[i] = v[i] ^ v[i + 8];
}

// The node above two others. `flags` is kBlake3Root for the root, else 0.
STAGING_HOST_DEVICE Blake3Node blake3_parent(const Blake3Node& left, const Blake3Node& right,
                                             std::uint32_t flags) {
  std::uint32_t message[16];
  for (int i = 0; i < 8; ++i) {
    message[i] = left.words[i];
    message[8 + i] = right.words[i];
  }
  Blake3Node node = blake3_iv_node();
  blake3_compress(node, message, 0, kBlake3BlockNbytes, kBlake3Parent | flags);
  return node;
}

}  // namespace staging::kernels
