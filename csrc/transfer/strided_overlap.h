// Whether strided blocks share bytes.
//
// Purpose: tells interleaved slices of one tensor, which may be copied into each other, from
//   slices that overlap.
// Owner: none. Thread-safety: stateless.
//
// Two elements meet where a sum of strides, each taken a bounded number of times, is the
// distance of the blocks: a linear Diophantine equation with bounds. It is solved exactly, by
// trying the multiples of the largest stride that leave a sum which the smaller ones can reach.
// For blocks whose strides nest (each at least as large as all that lies within, as in every
// view that PyTorch makes but those of as_strided and unfold) few are left at each level. For
// others the work can grow with the sizes: it is bounded by kMaxOverlapSteps sums, some
// fifty microseconds, and the answer is then "yes".
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace staging {

inline constexpr int kMaxOverlapSteps = 1 << 13;

// Where a block lies: the address of its first element, and how far apart the elements of each
// dimension are, in bytes (>= 0).
struct StridedPlace {
  std::uintptr_t begin;
  std::span<const std::int64_t> strides;
};

// Whether two blocks of one shape, all sizes of which are positive, share a byte. `true` also
// where that is not known after kMaxOverlapSteps.
bool blocks_overlap(std::span<const std::int64_t> sizes, std::size_t element_nbytes,
                    const StridedPlace& a, const StridedPlace& b);

// Whether two elements of one block share a byte; `true` as above.
bool elements_overlap(std::span<const std::int64_t> sizes, std::size_t element_nbytes,
                      std::span<const std::int64_t> strides);

}  // namespace staging
