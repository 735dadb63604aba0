#include "bindings/arguments.h"

#include "support/error.h"

namespace staging::bindings {

namespace py = pybind11;

std::string shown(py::handle value) {
  constexpr std::size_t kLongest = 80;
  const auto text = py::reinterpret_steal<py::object>(PyObject_ASCII(value.ptr()));
  const char* const bytes = text ? PyUnicode_AsUTF8(text.ptr()) : nullptr;
  if (bytes == nullptr) {
    PyErr_Clear();
    return std::string("an object of type ") + Py_TYPE(value.ptr())->tp_name;
  }
  const std::string whole(bytes);
  return whole.size() <= kLongest ? whole : whole.substr(0, kLongest) + "...";
}

std::int64_t int_argument(py::handle value, const std::string& name, std::int64_t least,
                          std::int64_t most, const char* of) {
  auto number = py::reinterpret_borrow<py::object>(value);
  if (!PyLong_CheckExact(value.ptr())) {
    number = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
    if (!number) {
      // Also of arrays and tensors, which have an __index__ that refuses.
      if (PyErr_ExceptionMatches(PyExc_TypeError) == 0) throw py::error_already_set();
      PyErr_Clear();
      throw py::type_error(name + " must be an int, got " + shown(value) + " of type " +
                           Py_TYPE(value.ptr())->tp_name);
    }
  }
  int overflow = 0;
  const long long result = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  STAGING_EXPECTS(overflow == 0 && result >= least && result <= most, name, " must be in ", least,
                  "..", most, " (", of, "), got ", shown(number));
  return result;
}

bool flag_argument(py::handle value, const char* name) {
  if (value.ptr() == Py_True) return true;
  if (value.ptr() == Py_False) return false;
  const std::string type = Py_TYPE(value.ptr())->tp_name;
  if (type == "numpy.bool" || type == "numpy.bool_") return PyObject_IsTrue(value.ptr()) == 1;
  if (PyLong_Check(value.ptr()) != 0) return int_argument(value, name, 0, 1, "a bool") != 0;
  throw py::type_error(std::string(name) + " must be a bool, got " + shown(value) + " of type " +
                       type);
}

}  // namespace staging::bindings
