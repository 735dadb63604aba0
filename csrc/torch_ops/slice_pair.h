// One slice copy, from[:length] -> to[:length], checked: what moves, and between which places.
//
// Owner: the caller keeps the tensors alive. Thread-safety: values.
#pragma once

#include <ATen/core/TensorBase.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "transfer/strided_block.h"

namespace staging::torch_ops {

struct SlicePair {
  using Sizes = c10::SmallVector<std::int64_t, 6>;

  at::TensorBase from;
  at::TensorBase to;
  BlockPair block;
  Sizes sizes;  // of the slice
  const std::byte* src;
  std::byte* dst;

  // No bytes, or the same bytes in the same order on both sides.
  bool nothing_to_do() const noexcept;
  // Bytes from the first to behind the last that the slice touches on either side.
  std::size_t src_extent() const noexcept { return extent(sizes, from.strides()); }
  std::size_t dst_extent() const noexcept { return extent(sizes, to.strides()); }
  // The same of a part of it, of `part` elements in each dimension.
  std::size_t extent(const Sizes& part, c10::IntArrayRef strides) const noexcept;
  // How the host packs the source into a dense block, and unpacks one into the destination.
  BlockPair pack() const;
  BlockPair unpack() const;
};

// Throws TypeMismatch (dtype, layout, a storage that is too small) or InvalidArgument (shape,
// length, overlap).
SlicePair make_slice_pair(const at::TensorBase& from, const at::TensorBase& to,
                          std::int64_t length);

// A pair's strides as the core takes them.
inline std::span<const std::int64_t> span_of(c10::IntArrayRef array) {
  return {array.data(), array.size()};
}

}  // namespace staging::torch_ops
