// Swaps an object between two classes: one whose host arrays are plain attributes, and one
// where reading them waits.
//
// Purpose: a guard that costs nothing while nothing is in flight. An attribute of a class
//   without __getattr__ or a descriptor of that name is the fastest that the interpreter has;
//   so the open class has neither, and the guarded class, a subclass of it that adds no
//   storage, has properties that wait (staging/host_guard.py makes it).
// Owner: the object that contains it; it borrows that object's address.
// Thread-safety: needs the GIL.
#pragma once

#include <pybind11/pybind11.h>

namespace staging::bindings {

class HostGuard {
 public:
  // Until this is called close() and open() do nothing.
  void set(pybind11::handle self, pybind11::object open_class, pybind11::object guarded_class);
  // From now on a read waits.
  void close() noexcept;
  // Reads are plain again. In one step with the check that nothing is in flight, under the GIL.
  void open() noexcept;

 private:
  void become(const pybind11::object& type) noexcept;

  PyObject* self_ = nullptr;  // borrowed
  pybind11::object open_class_;
  pybind11::object guarded_class_;
};

}  // namespace staging::bindings
