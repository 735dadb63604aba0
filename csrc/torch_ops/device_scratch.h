// Device memory from PyTorch's allocator, for work on one stream.
//
// Owner: the scratch. Freed memory is reused in the order of its stream, so it may be freed
//   as soon as the work that uses it is enqueued. Thread-safety: construct and destroy on
//   any thread.
#pragma once

#include <cstddef>

#include "stream/stream_ref.h"

namespace staging::torch_ops {

class DeviceScratch {
 public:
  // Throws torch's out-of-memory error.
  DeviceScratch(StreamRef stream, std::size_t nbytes);
  DeviceScratch(const DeviceScratch&) = delete;  // one owner
  DeviceScratch& operator=(const DeviceScratch&) = delete;
  ~DeviceScratch();

  void* data() const noexcept { return data_; }

 private:
  void* data_ = nullptr;
};

}  // namespace staging::torch_ops
