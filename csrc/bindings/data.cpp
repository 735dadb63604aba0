#include <array>

#include "bindings/bindings.h"
#include "bindings/torch_bridge.h"
#include "support/error.h"

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

// The view of a host tensor whose bytes lie in logical order already; None where they do
// not, or where the tensor has no bytes of that kind: the caller deals with those.
py::object contiguous_data(py::handle object, bool writable) {
  const at::TensorBase& tensor = unpack_tensor(object, "tensor");
  if (!tensor.is_cpu() || tensor.layout() != c10::kStrided || tensor.is_conj() || tensor.is_neg() ||
      tensor.unsafeGetTensorImpl()->is_python_dispatch() || !tensor.has_storage() ||
      tensor._is_zerotensor() || tensor.is_nested() || !tensor.is_contiguous()) {
    return py::none();
  }
  const std::size_t begin =
      static_cast<std::size_t>(tensor.storage_offset()) * tensor.element_size();
  if (tensor.nbytes() > 0 && begin + tensor.nbytes() > tensor.storage().nbytes()) {
    throw TypeMismatch(::staging::detail::join_message(
        "a tensor of shape ", tensor.sizes(), " needs ", begin + tensor.nbytes(),
        " bytes of storage and has ", tensor.storage().nbytes(),
        ": its storage was resized, so it has no image of bytes"));
  }
  py::object exporter = py::cast(TensorBytes(tensor, writable));
  PyObject* view = PyMemoryView_FromObject(exporter.ptr());
  if (view == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(view);
}

// Whether Python code stands for the tensor's values, rather than its storage.
bool is_wrapper(py::handle object) {
  return unpack_tensor(object, "tensor").unsafeGetTensorImpl()->is_python_dispatch();
}

}  // namespace

void bind_data(py::module_& m) {
  py::class_<TensorBytes>(m, "TensorBytes", py::buffer_protocol())
      .def_buffer([](const TensorBytes& bytes) { return bytes.info(); });
  m.def("is_wrapper", &is_wrapper, py::arg("tensor"));
  m.def("contiguous_data", &contiguous_data, py::arg("tensor"), py::arg("writable") = false);
}

}  // namespace staging::bindings
