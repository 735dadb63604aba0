#include <pybind11/stl.h>

#include <algorithm>
#include <string>
#include <vector>

#include "bindings/arguments.h"
#include "bindings/bindings.h"
#include "bindings/torch_bridge.h"
#include "support/error.h"
#include "support/nvtx.h"
#include "torch_ops/tensor_access.h"
#include "transfer/staged_rows.h"

namespace staging::bindings {

namespace py = pybind11;

namespace {

// The base of staging.StagedRows: a table on the device, and the writes that wait for it.
class Rows {
 public:
  // `format` is the buffer protocol's code for the table's elements, or empty where it has
  // none.
  Rows(py::object gpu, const std::string& format, std::string name)
      : gpu_object_(std::move(gpu)),
        gpu_(unpack_tensor(gpu_object_, "gpu")),
        format_(format),
        name_(std::move(name)),
        streams_(gpu_),
        staged_(context_of(gpu_), gpu_.mutable_data_ptr(), gpu_.size(0), gpu_.size(1),
                gpu_.itemsize(), std::make_shared<c10::Storage>(gpu_.storage())) {
    if (gpu_.is_cuda()) staged_.filled_on(streams_.last());
  }
  Rows(const Rows&) = delete;  // one order of writes
  Rows& operator=(const Rows&) = delete;

  // Stages an object with the buffer protocol and the table's elements; false where `values`
  // is none.
  bool stage(py::handle row_object, py::handle start_object, py::handle values) {
    const std::int64_t row = int_argument(row_object, "row");
    const std::int64_t start = int_argument(start_object, "start");
    if (PyObject_CheckBuffer(values.ptr()) == 0) return false;
    Py_buffer view;
    if (PyObject_GetBuffer(values.ptr(), &view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0) {
      PyErr_Clear();  // not contiguous, or of a dtype that has no code
      return false;
    }
    const struct Release {
      Py_buffer* view;
      ~Release() { PyBuffer_Release(view); }
    } release{&view};
    if (format_.empty() || !same_format(view.format)) return false;
    STAGING_EXPECTS(view.ndim <= 1, "values must have one dimension, got ", view.ndim);
    staged_.stage(row, start, view.buf, view.len / view.itemsize);
    return true;
  }

  // Stages the elements whose bytes `values` holds.
  void stage_bytes(py::handle row, py::handle start, const py::buffer& values) {
    const py::buffer_info info = values.request();
    staged_.stage(int_argument(row, "row"), int_argument(start, "start"), info.ptr,
                  info.size * info.itemsize / static_cast<py::ssize_t>(gpu_.itemsize()));
  }

  void stage_tensor(py::handle row_object, py::handle start_object, py::handle values) {
    const std::int64_t row = int_argument(row_object, "row");
    const std::int64_t start = int_argument(start_object, "start");
    const at::TensorBase& tensor = unpack_tensor(values, "values");
    staged_.stage(row, start, tensor.const_data_ptr(), tensor.numel());
  }

  std::size_t discard() {
    const py::gil_scoped_release no_gil;
    return staged_.discard();
  }

  static void apply(const std::vector<Rows*>& tables, py::handle stream) {
    if (tables.empty()) return;
    Rows& first = *tables.front();
    std::vector<StagedRows*> staged;
    for (std::size_t i = 0; i < tables.size(); ++i) {
      STAGING_EXPECTS(tables[i] != nullptr, "tables[", i, "] must be a StagedRows, got None");
      STAGING_EXPECTS(tables[i]->gpu_.device() == first.gpu_.device(),
                      "tables must be on one device, got ", first.gpu_.device(), " and, in tables[",
                      i, "], ", tables[i]->gpu_.device(), "; make one call for each");
      StagedRows* table = &tables[i]->staged_;
      STAGING_EXPECTS(std::find(staged.begin(), staged.end(), table) == staged.end(), "tables[", i,
                      "] is in tables twice");
      staged.push_back(table);
    }
    const NvtxRange range(first.name_, "apply");
    StreamRef on;
    for (Rows* table : tables) on = table->streams_.of(stream);
    {
      const py::gil_scoped_release no_gil;
      apply_rows(staged, on);
    }
    for (Rows* table : tables) table->gpu_.unsafeGetTensorImpl()->bump_version();
  }

  std::size_t pending() const { return staged_.pending(); }
  std::size_t pending_nbytes() const { return staged_.pending_nbytes(); }

 private:
  static DeviceContext* context_of(const at::TensorBase& gpu) {
    return gpu.is_cuda() ? &DeviceContext::of(gpu.device().index()) : nullptr;
  }

  // Both "l" and "q" are 64 bits here.
  bool same_format(const char* format) const {
    const std::string code = format == nullptr ? "B" : format;
    const auto common = [](const std::string& text) -> std::string {
      return text == "l" ? "q" : text == "L" ? "Q" : text;
    };
    return common(code) == common(format_);
  }

  const py::object gpu_object_;
  const at::TensorBase gpu_;
  const std::string format_;
  const std::string name_;
  TensorStreams streams_;
  StagedRows staged_;
};

}  // namespace

void bind_rows(py::module_& m) {
  py::class_<Rows>(m, "Rows")
      .def(py::init<py::object, const std::string&, std::string>(), py::arg("gpu"),
           py::arg("format"), py::arg("name"))
      .def("_stage", &Rows::stage, py::arg("row"), py::arg("start"), py::arg("values"))
      .def("_stage_bytes", &Rows::stage_bytes, py::arg("row"), py::arg("start"), py::arg("values"))
      .def("_stage_tensor", &Rows::stage_tensor, py::arg("row"), py::arg("start"),
           py::arg("values"))
      .def("_discard", &Rows::discard)
      .def("_pending", &Rows::pending)
      .def("_pending_nbytes", &Rows::pending_nbytes);
  m.def("apply_rows", &Rows::apply, py::arg("tables"), py::kw_only(),
        py::arg("stream") = py::none());
}

}  // namespace staging::bindings
