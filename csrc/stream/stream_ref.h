// A stream and the device it belongs to, by value.
//
// Owner: whoever made the stream (PyTorch, the user); a StreamRef owns nothing and may
// outlive what it names only as a key. Thread-safety: a value.
#pragma once

#include "runtime/runtime.h"

namespace staging {

struct StreamRef {
  int device = -1;
  StreamHandle handle = nullptr;  // null: the device's legacy default stream

  friend bool operator==(const StreamRef&, const StreamRef&) = default;
};

}  // namespace staging
