// The plain part of staging.framing: values that need no Python code to be written out.
//
// docs/digest-framing.md specifies the encodings; staging/framing.py has all of them, and the
// error messages. What is not plain is left to it.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bindings.h"

namespace staging::bindings {

namespace py = pybind11;

namespace {

static_assert(std::endian::native == std::endian::little, "the encodings are little-endian");

// Longer bytes are hashed where they are, rather than copied together.
constexpr Py_ssize_t kLargestCopy = 4096;

void put(std::string& out, char tag, std::uint64_t number) {
  char bytes[1 + sizeof(number)] = {tag};
  std::memcpy(bytes + 1, &number, sizeof(number));
  out.append(bytes, sizeof(bytes));
}

void put_int(std::string& out, std::int64_t value) {
  const std::uint64_t bits = static_cast<std::uint64_t>(value);
  const std::size_t nbytes =
      static_cast<std::size_t>(std::bit_width(value < 0 ? ~bits + 1 : bits)) / 8 + 1;
  char bytes[sizeof(bits) + 1];
  std::memcpy(bytes, &bits, sizeof(bits));
  bytes[sizeof(bits)] = value < 0 ? '\xff' : '\0';
  put(out, 'i', nbytes);
  out.append(bytes, nbytes);
}

void put_float(std::string& out, double value) {
  std::uint64_t bits = std::uint64_t{0x7ff8} << 48;  // every NaN
  if (!std::isnan(value)) std::memcpy(&bits, &value, sizeof(value));
  put(out, 'd', bits);
}

// False where the value, or one within it, is not plain; what is in `out` is then void.
bool write(std::string& out, PyObject* value, int depth);

bool write_items(std::string& out, char tag, PyObject* const* items, Py_ssize_t count, int depth) {
  put(out, tag, static_cast<std::uint64_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (!write(out, items[i], depth - 1)) return false;
  }
  return true;
}

bool write_dict(std::string& out, PyObject* dict, int depth) {
  std::vector<std::pair<std::string, PyObject*>> entries;
  PyObject* key = nullptr;
  PyObject* value = nullptr;
  for (Py_ssize_t at = 0; PyDict_Next(dict, &at, &key, &value) != 0;) {
    entries.emplace_back(std::string(), value);
    if (!write(entries.back().first, key, depth - 1)) return false;
  }
  // std::string compares its bytes as unsigned.
  std::stable_sort(entries.begin(), entries.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  put(out, 'm', entries.size());
  for (const auto& [encoded, item] : entries) {
    out += encoded;
    if (!write(out, item, depth - 1)) return false;
  }
  return true;
}

bool write(std::string& out, PyObject* value, int depth) {
  if (depth < 0) return false;
  if (value == Py_None) {
    out += 'N';
  } else if (PyBool_Check(value)) {
    out += value == Py_True ? 'T' : 'F';
  } else if (PyLong_CheckExact(value)) {
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow != 0) return false;
    put_int(out, number);
  } else if (PyFloat_CheckExact(value)) {
    put_float(out, PyFloat_AS_DOUBLE(value));
  } else if (PyUnicode_CheckExact(value)) {
    Py_ssize_t nbytes = 0;
    const char* const text = PyUnicode_AsUTF8AndSize(value, &nbytes);
    if (text == nullptr) {  // a lone surrogate
      PyErr_Clear();
      return false;
    }
    put(out, 's', static_cast<std::uint64_t>(nbytes));
    out.append(text, static_cast<std::size_t>(nbytes));
  } else if (PyBytes_CheckExact(value)) {
    const Py_ssize_t nbytes = PyBytes_GET_SIZE(value);
    if (nbytes > kLargestCopy) return false;
    put(out, 'b', static_cast<std::uint64_t>(nbytes));
    out.append(PyBytes_AS_STRING(value), static_cast<std::size_t>(nbytes));
  } else if (PyList_CheckExact(value) || PyTuple_CheckExact(value)) {
    return write_items(out, PyList_CheckExact(value) ? 'l' : 't', PySequence_Fast_ITEMS(value),
                       PySequence_Fast_GET_SIZE(value), depth);
  } else if (PyDict_CheckExact(value)) {
    return write_dict(out, value, depth);
  } else {
    return false;
  }
  return true;
}

// The encoding of a plain value, or None. `depth`: how much deeper values may be nested.
py::object frame_plain(py::handle value, int depth) {
  std::string out;
  if (!write(out, value.ptr(), depth)) return py::none();
  return py::bytes(out);
}

}  // namespace

void bind_framing(py::module_& m) {
  m.def("frame_plain", &frame_plain, py::arg("value"), py::arg("depth"));
}

}  // namespace staging::bindings
