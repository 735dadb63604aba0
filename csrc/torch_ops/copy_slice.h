// copy_slice: from[:length] -> to[:length], between any two places.
#pragma once

#include <ATen/core/TensorBase.h>

#include <cstdint>
#include <optional>

#include "stream/stream_ref.h"

namespace staging::torch_ops {

struct CopySliceOptions {
  // Take a host source's bytes before returning, so that it may be overwritten at once.
  bool snapshot = false;
  // Instead of the current stream of the device tensor's device.
  std::optional<StreamRef> stream;
};

// Throws TypeMismatch (dtype, layout) or InvalidArgument (shape, length), with nothing copied.
// Waits for nothing, except:
//   * a pageable destination: until its bytes are there;
//   * the upload ring's backpressure, where the source is pageable, strided or a snapshot.
// Call without the GIL.
void copy_slice(const at::TensorBase& from, const at::TensorBase& to, std::int64_t length,
                const CopySliceOptions& options);

}  // namespace staging::torch_ops
