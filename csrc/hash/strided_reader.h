// Reads a host tensor of any strides in logical order, a block at a time.
//
// Purpose: hashes of tensors that do not lie together, without a copy of the whole. A
//   transpose is read in tiles of a cache line each way.
// Owner: the reader owns nothing; the tensor's memory stays the caller's.
// Thread-safety: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "hash/index_map.h"

namespace staging {

// The sign bits that a lazy conjugate or negative view has not flipped in memory yet: of the
// top byte of every `part_nbytes`, beginning with the first or the second. None: 0 bytes.
struct SignFlips {
  std::int64_t part_nbytes = 0;
  bool even = false;  // parts 0, 2, 4, …
  bool odd = false;   // parts 1, 3, 5, …
};

class StridedReader {
 public:
  explicit StridedReader(const StridedBytes& tensor, SignFlips flips = {});

  std::uint64_t nbytes() const noexcept { return map_.nbytes; }
  // Writes the next bytes to `out`: as many as fit, or somewhat fewer where that spares
  // reading memory twice. 0 at the end. `capacity` is a multiple of 32, and more than 0.
  std::size_t read(std::byte* out, std::size_t capacity);

 private:
  template <typename Unit>
  void copy(std::byte* out, std::int64_t units);
  void flip_signs(std::byte* out, std::size_t nbytes) const;
  std::int64_t units_for(std::size_t capacity) const;
  bool at_slab() const;
  void advance(std::size_t dim, std::int64_t count);
  void rewind(std::size_t dim);

  IndexMap map_;
  SignFlips flips_;
  // The dimension whose indices lie side by side, where that is not the innermost; and how
  // many units the ones within it have together. 0: none.
  std::size_t across_ = 0;
  std::int64_t slab_units_ = 0;
  std::uint64_t units_left_ = 0;
  std::int64_t column_ = 0;          // in dims[0]
  std::vector<std::int64_t> index_;  // in the other dimensions
  const std::byte* row_ = nullptr;   // where column 0 is
};

}  // namespace staging
