#include "hash/blake3.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/blake3_compress.cuh"

namespace staging {

namespace {

using kernels::Blake3Node;

template <typename Words>
Blake3Node to_node(const Words& words) noexcept {
  Blake3Node node;
  std::copy(words.begin(), words.end(), node.words);
  return node;
}

template <typename Words>
void from_node(Words& words, const Blake3Node& node) noexcept {
  std::copy(std::begin(node.words), std::end(node.words), words.begin());
}

void compress_block(Blake3Node& node, const unsigned char* block, std::uint64_t counter,
                    unsigned nbytes, std::uint32_t flags) noexcept {
  std::uint32_t message[16];
  std::memcpy(message, block, sizeof(message));
  kernels::blake3_compress(node, message, counter, nbytes, flags);
}

}  // namespace

Blake3::Blake3() noexcept {
  from_node(chaining_value_, kernels::blake3_iv_node());
}

void Blake3::update(const void* data, std::size_t nbytes) noexcept {
  const unsigned char* bytes = static_cast<const unsigned char*>(data);
  Blake3Node node = to_node(chaining_value_);
  while (nbytes > 0) {
    if (block_nbytes_ == block_.size()) {
      // More follows, so this block is not the last of the input; of the chunk it may be.
      if (compressed_blocks_ + 1 == kernels::kBlake3BlocksPerChunk) {
        from_node(chaining_value_, node);
        push_chunk();
        node = kernels::blake3_iv_node();
      } else {
        compress_block(node, block_.data(), chunk_count_, kernels::kBlake3BlockNbytes,
                       compressed_blocks_ == 0 ? kernels::kBlake3ChunkStart : 0);
        ++compressed_blocks_;
      }
      block_nbytes_ = 0;
    }
    const std::size_t part = std::min(nbytes, block_.size() - block_nbytes_);
    std::memcpy(block_.data() + block_nbytes_, bytes, part);
    block_nbytes_ += static_cast<unsigned>(part);
    bytes += part;
    nbytes -= part;
  }
  from_node(chaining_value_, node);
}

// The chunk is whole and more follows: it joins the subtrees to its left. Each trailing zero
// of the new count is a pair of equal subtrees.
void Blake3::push_chunk() noexcept {
  Blake3Node node = to_node(chaining_value_);
  compress_block(node, block_.data(), chunk_count_, kernels::kBlake3BlockNbytes,
                 kernels::kBlake3ChunkEnd);
  int depth = std::popcount(chunk_count_);
  ++chunk_count_;
  for (int merges = std::countr_zero(chunk_count_); merges > 0; --merges) {
    node = kernels::blake3_parent(to_node(subtrees_[--depth]), node, 0);
  }
  from_node(subtrees_[depth], node);
  compressed_blocks_ = 0;
}

Blake3Digest Blake3::digest() const noexcept {
  unsigned char block[kernels::kBlake3BlockNbytes] = {};
  std::copy_n(block_.data(), block_nbytes_, block);
  Blake3Node node = to_node(chaining_value_);
  compress_block(node, block, chunk_count_, block_nbytes_,
                 kernels::kBlake3ChunkEnd |
                     (compressed_blocks_ == 0 ? kernels::kBlake3ChunkStart : 0) |
                     (chunk_count_ == 0 ? kernels::kBlake3Root : 0));
  for (int depth = std::popcount(chunk_count_); depth > 0; --depth) {
    node = kernels::blake3_parent(to_node(subtrees_[depth - 1]), node,
                                  depth == 1 ? kernels::kBlake3Root : 0);
  }
  Blake3Digest digest;
  std::memcpy(digest.data(), node.words, digest.size());
  return digest;
}

Blake3Digest blake3(const void* data, std::size_t nbytes) noexcept {
  Blake3 hasher;
  hasher.update(data, nbytes);
  return hasher.digest();
}

}  // namespace staging
