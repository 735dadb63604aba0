#include "bindings/bindings.h"
#include "bindings/torch_bridge.h"
#include "torch_ops/copy_slice.h"
#include "torch_ops/tensor_access.h"

namespace staging::bindings {

namespace py = pybind11;

namespace {

py::object copy_slice(py::handle from_tensor, py::handle to_tensor, std::int64_t length,
                      bool snapshot, py::handle stream) {
  // Holding the handles' tensors keeps them while the GIL is released.
  const at::TensorBase from = unpack_tensor(from_tensor, "from_tensor");
  const at::TensorBase to = unpack_tensor(to_tensor, "to_tensor");
  torch_ops::CopySliceOptions options{.snapshot = snapshot, .stream = std::nullopt};
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

}  // namespace

void bind_copy(py::module_& m) {
  m.def("copy_slice", &copy_slice, py::arg("from_tensor"), py::arg("to_tensor"), py::arg("length"),
        py::kw_only(), py::arg("snapshot") = false, py::arg("stream") = py::none());
}

}  // namespace staging::bindings
