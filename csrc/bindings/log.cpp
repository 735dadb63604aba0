// The core's messages, as records of the logger "staging".
#include "support/log.h"

#include "bindings/bindings.h"

namespace staging::bindings {

namespace py = pybind11;

namespace {

void log_to_python(const char* message) noexcept {
  if (Py_IsInitialized() == 0) return;
  const py::gil_scoped_acquire gil;
  const py::error_scope pending;  // an error of the caller's stays as it is
  try {
    py::module_::import("logging").attr("getLogger")("staging").attr("warning")(message);
  } catch (...) {  // a handler's failure is not the copy's
  }
}

}  // namespace

void bind_log(py::module_&) {
  log_hook.store(&log_to_python);
}

}  // namespace staging::bindings
