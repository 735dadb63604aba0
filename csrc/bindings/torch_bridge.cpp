#include "bindings/torch_bridge.h"

#include <torch/csrc/autograd/python_variable.h>

#include "bindings/arguments.h"
#include "support/error.h"
#include "torch_ops/tensor_access.h"

namespace staging::bindings {

namespace py = pybind11;

const at::TensorBase& unpack_tensor(py::handle object, const char* name) {
  if (!THPVariable_Check(object.ptr())) {
    throw py::type_error(std::string(name) + " must be a torch.Tensor, got " +
                         Py_TYPE(object.ptr())->tp_name);
  }
  return THPVariable_Unpack(object.ptr());
}

py::object wrap_tensor(const at::TensorBase& tensor) {
  py::object object = py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor));
  if (!object) throw py::error_already_set();
  return object;
}

std::optional<StreamRef> stream_argument(py::handle stream, int device) {
  if (stream.is_none()) return std::nullopt;
  if (!py::hasattr(stream, "cuda_stream") || !py::hasattr(stream, "device_index")) {
    throw py::type_error(std::string("stream must be a torch.cuda.Stream or None, got ") +
                         Py_TYPE(stream.ptr())->tp_name);
  }
  const std::int64_t stream_device =
      int_argument(stream.attr("device_index"), "stream.device_index");
  STAGING_EXPECTS(stream_device == device,
                  "stream must belong to the tensor's device cuda:", device,
                  ", got a stream of cuda:", stream_device);
  const std::int64_t handle = int_argument(stream.attr("cuda_stream"), "stream.cuda_stream");
  // PyTorch's ids of its own streams are odd.
  const bool from_torch = py::hasattr(stream, "stream_id") &&
                          (int_argument(stream.attr("stream_id"), "stream.stream_id") & 1) != 0;
  return torch_ops::stream_ref(device, reinterpret_cast<StreamHandle>(handle), from_torch);
}

TensorStreams::TensorStreams(const at::TensorBase& tensor) : tensor_(tensor) {
  if (tensor_.is_cuda()) known_ = torch_ops::current_stream(tensor_.device().index());
}

StreamRef TensorStreams::of(py::handle stream) {
  if (!tensor_.is_cuda()) return {};
  const int device = tensor_.device().index();
  const StreamRef on =
      stream.is_none() ? torch_ops::current_stream(device) : *stream_argument(stream, device);
  if (!(on == known_)) {
    torch_ops::keep_device_memory(tensor_, on);
    known_ = on;
  }
  return on;
}

}  // namespace staging::bindings
