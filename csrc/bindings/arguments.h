// Arguments of Python as plain C++ values.
//
// Purpose: each is converted once, and what was checked is what is used: an object's
//   `__index__` may answer differently the next time. The error texts are here, too.
// Thread-safety: needs the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <limits>
#include <string>

namespace staging::bindings {

// repr(), shortened, for a message. Never throws an exception of the object's.
std::string shown(pybind11::handle value);

// An int, or what operator.index() takes. Throws TypeError where it is none, ValueError where it
// is not in least..most; `of` says what these are. Other exceptions of `__index__` pass through.
std::int64_t int_argument(pybind11::handle value, const std::string& name,
                          std::int64_t least = std::numeric_limits<std::int64_t>::min(),
                          std::int64_t most = std::numeric_limits<std::int64_t>::max(),
                          const char* of = "64 bits");

// A bool, NumPy's too, or an int. Throws TypeError for anything else.
bool flag_argument(pybind11::handle value, const char* name);

}  // namespace staging::bindings
