#include <array>

#include "bindings/arguments.h"
#include "bindings/bindings.h"
#include "bindings/torch_bridge.h"
#include "support/error.h"
#include "torch_ops/digest.h"
#include "torch_ops/tensor_bytes.h"

namespace staging::bindings {

namespace py = pybind11;

namespace {

// Exports a tensor's bytes through the buffer protocol, and keeps its storage alive. The
// storage cannot be resized from then on, as after Tensor.numpy(): a view would dangle.
class TensorBytes {
 public:
  TensorBytes(const at::TensorBase& tensor, bool writable)
      : storage_(tensor.storage()), writable_(writable) {
    static std::byte nothing;  // the buffer protocol wants an address, even of zero bytes
    nbytes_ = tensor.nbytes();
    data_ = nbytes_ == 0 ? &nothing : const_cast<void*>(tensor.const_data_ptr());
    storage_.unsafeGetStorageImpl()->set_resizable(false);
  }

  py::buffer_info info() const {
    return py::buffer_info(static_cast<std::uint8_t*>(data_), static_cast<py::ssize_t>(nbytes_),
                           !writable_);
  }

 private:
  c10::Storage storage_;
  void* data_;
  std::size_t nbytes_;
  bool writable_;
};

py::object view_of(py::object exporter) {
  PyObject* view = PyMemoryView_FromObject(exporter.ptr());
  if (view == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(view);
}

// A view of a copy, which it owns. For what copy_bytes() takes.
py::object copied_data(py::handle object) {
  const at::TensorBase tensor = unpack_tensor(object, "tensor");
  HostBytes bytes;
  {
    const py::gil_scoped_release no_gil;
    bytes = torch_ops::copy_bytes(tensor);
  }
  return view_of(py::cast(std::move(bytes)));
}

// The view of a tensor whose bytes lie in logical order already: its own memory on the host,
// a copy of a CUDA tensor's. None where they do not, or where the tensor has no bytes of that
// kind: the caller deals with those.
py::object contiguous_data(py::handle object, py::handle writable_object) {
  const bool writable = flag_argument(writable_object, "writable");
  const at::TensorBase& tensor = unpack_tensor(object, "tensor");
  const bool on_device = tensor.is_cuda() && !writable;
  if (!(tensor.is_cpu() || on_device) || !torch_ops::is_plain(tensor)) return py::none();
  if (on_device) return copied_data(object);
  const std::size_t begin =
      static_cast<std::size_t>(tensor.storage_offset()) * tensor.element_size();
  if (tensor.nbytes() > 0 && begin + tensor.nbytes() > tensor.storage().nbytes()) {
    throw TypeMismatch(::staging::detail::join_message(
        "a tensor of shape ", tensor.sizes(), " needs ", begin + tensor.nbytes(),
        " bytes of storage and has ", tensor.storage().nbytes(),
        ": its storage was resized, so it has no image of bytes"));
  }
  return view_of(py::cast(TensorBytes(tensor, writable)));
}

// The buffer protocol wants an address, even of zero bytes.
py::buffer_info info_of(const HostBytes& bytes) {
  static std::uint8_t nothing;
  return {bytes.data() == nullptr ? &nothing : reinterpret_cast<std::uint8_t*>(bytes.data()),
          static_cast<py::ssize_t>(bytes.nbytes()), /*readonly=*/true};
}

// Whether Python code stands for the tensor's values, rather than its storage.
bool is_wrapper(py::handle object) {
  return unpack_tensor(object, "tensor").unsafeGetTensorImpl()->is_python_dispatch();
}

}  // namespace

void bind_data(py::module_& m) {
  py::class_<TensorBytes>(m, "TensorBytes", py::buffer_protocol())
      .def_buffer([](const TensorBytes& bytes) { return bytes.info(); });
  py::class_<HostBytes>(m, "HostBytes", py::buffer_protocol()).def_buffer(&info_of);
  m.def("is_wrapper", &is_wrapper, py::arg("tensor"));
  m.def("contiguous_data", &contiguous_data, py::arg("tensor"),
        py::arg("writable") = py::bool_(false));
  m.def("copied_data", &copied_data, py::arg("tensor"));
}

}  // namespace staging::bindings
