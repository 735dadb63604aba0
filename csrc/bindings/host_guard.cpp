#include "bindings/host_guard.h"

#include <utility>

namespace staging::bindings {

namespace py = pybind11;

void HostGuard::set(py::handle self, py::object open_class, py::object guarded_class) {
  self_ = self.ptr();
  open_class_ = std::move(open_class);
  guarded_class_ = std::move(guarded_class);
}

void HostGuard::close() noexcept {
  become(guarded_class_);
}

void HostGuard::open() noexcept {
  become(open_class_);
}

void HostGuard::become(const py::object& type) noexcept {
  if (self_ == nullptr || reinterpret_cast<PyObject*>(Py_TYPE(self_)) == type.ptr()) return;
  static PyObject* const name = PyUnicode_InternFromString("__class__");
  // Around an exception that is on its way.
  PyObject *error_type, *error_value, *error_trace;
  PyErr_Fetch(&error_type, &error_value, &error_trace);
  if (PyObject_SetAttr(self_, name, type.ptr()) != 0) PyErr_WriteUnraisable(self_);
  PyErr_Restore(error_type, error_value, error_trace);
}

}  // namespace staging::bindings
