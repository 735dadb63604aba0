// The core's errors as Python exceptions, and Ctrl-C in its waits.
#include "bindings/bindings.h"
#include "support/error.h"
#include "support/interrupt.h"
#include "support/slow_path.h"

namespace staging::bindings {

namespace py = pybind11;

namespace {

PyObject* device_error = nullptr;
PyObject* out_of_memory = nullptr;
PyObject* strict_error = nullptr;

// The main thread's wait ends here when a signal's handler raised.
bool signal_raised() {
  const py::gil_scoped_acquire gil;
  return PyErr_CheckSignals() != 0;
}

void raise(PyObject* type, const DeviceError& error) {
  py::object exception =
      py::reinterpret_steal<py::object>(PyObject_CallFunction(type, "s", error.what()));
  if (!exception) return;
  exception.attr("call") = error.call();
  exception.attr("code") = error.code();
  exception.attr("name") = error.name();
  exception.attr("text") = error.text();
  exception.attr("context_lost") = error.sticky();
  PyErr_SetObject(type, exception.ptr());
}

void translate(std::exception_ptr pointer) {
  try {
    std::rethrow_exception(pointer);
  } catch (const Interrupted&) {
    // The handler's exception is set already.
    if (PyErr_Occurred() == nullptr) PyErr_SetNone(PyExc_KeyboardInterrupt);
  } catch (const InvalidArgument& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const TypeMismatch& error) {
    PyErr_SetString(PyExc_TypeError, error.what());
  } catch (const OutOfMemory& error) {
    raise(out_of_memory, error);
  } catch (const DeviceError& error) {
    raise(device_error, error);
  } catch (const StrictViolation& error) {
    PyErr_SetString(strict_error, error.what());
  } catch (const Error& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
}

}  // namespace

void bind_errors(py::module_& m) {
  device_error = PyErr_NewExceptionWithDoc(
      "staging.DeviceError",
      "A call of the device runtime failed.\n\n"
      "Attributes: call (str), code (int), name (str), text (str), context_lost (bool).\n"
      "The error has been consumed: it is not left for the next check of somebody else.",
      PyExc_RuntimeError, nullptr);
  m.attr("DeviceError") = py::reinterpret_borrow<py::object>(device_error);
  py::object bases = py::make_tuple(m.attr("DeviceError"), py::handle(PyExc_MemoryError));
  out_of_memory = PyErr_NewExceptionWithDoc(
      "staging.OutOfMemory", "Pinned memory, or an event, could not be had.", bases.ptr(), nullptr);
  m.attr("OutOfMemory") = py::reinterpret_borrow<py::object>(out_of_memory);
  strict_error = PyErr_NewExceptionWithDoc(
      "staging.StrictError",
      "Strict mode refused a call that would be slow or synchronous. Nothing was done.",
      PyExc_RuntimeError, nullptr);
  m.attr("StrictError") = py::reinterpret_borrow<py::object>(strict_error);
  py::register_exception_translator(&translate);
  interrupt_check.store(&signal_raised);
}

}  // namespace staging::bindings
