// copy_slices: many slice copies in one call, with as few operations as they need.
#pragma once

#include <ATen/core/TensorBase.h>

#include <cstdint>
#include <span>

#include "torch_ops/copy_slice.h"

namespace staging::torch_ops {

struct SliceArguments {
  at::TensorBase from;
  at::TensorBase to;
  std::int64_t length;
};

// Has the effect of copy_slice() of each in turn. All of them are checked before anything is
// copied: throws TypeMismatch or InvalidArgument, naming the item, or StateError under capture,
// with nothing copied. The device tensors are of one device.
// Waits for nothing, except:
//   * pageable destinations: once, until the bytes of all of them are there;
//   * the upload ring's backpressure, where a source is pageable, strided or a snapshot.
// Call without the GIL.
void copy_slices(std::span<const SliceArguments> slices, const CopySliceOptions& options);

}  // namespace staging::torch_ops
