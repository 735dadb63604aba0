#include <string>
#include <vector>

#include "bindings/arguments.h"
#include "bindings/bindings.h"
#include "bindings/torch_bridge.h"
#include "torch_ops/copy_slice.h"
#include "torch_ops/copy_slices.h"
#include "torch_ops/tensor_access.h"

namespace staging::bindings {

namespace py = pybind11;

namespace {

py::object copy_slice(py::handle from_tensor, py::handle to_tensor, py::handle length_object,
                      py::handle snapshot, py::handle stream) {
  const std::int64_t length = int_argument(length_object, "length");
  // Holding the handles' tensors keeps them while the GIL is released.
  const at::TensorBase from = unpack_tensor(from_tensor, "from_tensor");
  const at::TensorBase to = unpack_tensor(to_tensor, "to_tensor");
  torch_ops::CopySliceOptions options{.snapshot = flag_argument(snapshot, "snapshot"),
                                      .stream = std::nullopt};
  if (!stream.is_none()) {
    const at::TensorBase& on_device = to.is_cuda() ? to : from;
    options.stream = stream_argument(stream, on_device.device().index());
  }
  {
    const py::gil_scoped_release no_gil;
    torch_ops::copy_slice(from, to, length, options);
  }
  if (length == to.size(0)) return py::reinterpret_borrow<py::object>(to_tensor);
  return wrap_tensor(torch_ops::prefix_view(to, length));
}

void copy_slices(py::handle slices_object, py::handle snapshot, py::handle stream) {
  std::vector<torch_ops::SliceArguments> arguments;
  torch_ops::CopySliceOptions options{.snapshot = flag_argument(snapshot, "snapshot"),
                                      .stream = std::nullopt};
  // Its items are held: what reading one runs may change the next.
  const auto slices = py::reinterpret_steal<py::object>(PyObject_GetIter(slices_object.ptr()));
  if (!slices) {
    if (PyErr_ExceptionMatches(PyExc_TypeError) == 0) throw py::error_already_set();
    PyErr_Clear();
    throw py::type_error(
        "slices must be an iterable of tuples (from_tensor, to_tensor, length), got " +
        shown(slices_object));
  }
  for (py::handle item : py::reinterpret_borrow<py::iterator>(slices)) {
    const std::string name = "slices[" + std::to_string(arguments.size()) + "]";
    if (!py::isinstance<py::tuple>(item) || py::len(item) != 3) {
      throw py::type_error(name + " must be a tuple (from_tensor, to_tensor, length), got " +
                           py::repr(py::type::of(item)).cast<std::string>());
    }
    const auto slice = py::reinterpret_borrow<py::tuple>(item);
    arguments.push_back({unpack_tensor(slice[0], (name + "[0]").c_str()),
                         unpack_tensor(slice[1], (name + "[1]").c_str()),
                         int_argument(slice[2], name + "[2]")});
    const torch_ops::SliceArguments& last = arguments.back();
    for (const at::TensorBase* tensor : {&last.to, &last.from}) {
      if (!options.stream && !stream.is_none() && tensor->is_cuda()) {
        options.stream = stream_argument(stream, tensor->device().index());
      }
    }
  }
  const py::gil_scoped_release no_gil;
  torch_ops::copy_slices(arguments, options);
}

}  // namespace

void bind_copy(py::module_& m) {
  // Positional only: matching keywords would cost a fifth of the call.
  m.def("copy_slice", &copy_slice);
  m.def("copy_slices", &copy_slices, py::arg("slices"), py::kw_only(),
        py::arg("snapshot") = py::bool_(false), py::arg("stream") = py::none());
}

}  // namespace staging::bindings
