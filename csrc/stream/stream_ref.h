// A stream and the device it belongs to, by value.
//
// Owner: whoever made the stream (PyTorch, the user); a StreamRef owns nothing and may
// outlive what it names only as a key. Thread-safety: a value.
#pragma once

#include <cstdint>

#include "runtime/runtime.h"

namespace staging {

struct StreamRef {
  int device = -1;
  StreamHandle handle = nullptr;  // null: the device's legacy default stream
  // Tells a stream from an earlier one that was destroyed and had the same handle. 0 for
  // streams that live as long as the process: the default one and those of PyTorch's pool.
  std::uint64_t id = 0;

  friend bool operator==(const StreamRef&, const StreamRef&) = default;
};

}  // namespace staging
