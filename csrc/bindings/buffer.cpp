#include <cstring>
#include <memory>

#include "bindings/bindings.h"
#include "bindings/torch_bridge.h"
#include "support/error.h"
#include "torch_ops/tensor_access.h"
#include "transfer/buffer_copies.h"

namespace staging::bindings {

namespace py = pybind11;

namespace {

// The base of staging.CpuGpuBuffer: a pair of dense tensors of one shape and the copies
// between them. The Python class makes the tensors and guards the host one.
class Buffer {
 public:
  Buffer(py::object cpu, py::object gpu, bool pinned)
      : cpu_object_(std::move(cpu)),
        gpu_object_(std::move(gpu)),
        cpu_(unpack_tensor(cpu_object_, "cpu")),
        gpu_(unpack_tensor(gpu_object_, "gpu")),
        rows_(cpu_.dim() > 0 ? cpu_.size(0) : 0),
        nbytes_(cpu_.nbytes()),
        row_nbytes_(rows_ > 0 ? nbytes_ / static_cast<std::size_t>(rows_) : 0) {
    if (gpu_.is_cuda()) {
      device_ = gpu_.device().index();
      known_stream_ = torch_ops::current_stream(device_);
      copies_ = std::make_unique<BufferCopies>(DeviceContext::of(device_), cpu_.mutable_data_ptr(),
                                               gpu_.mutable_data_ptr(), pinned);
    }
  }
  Buffer(const Buffer&) = delete;  // one order of copies
  Buffer& operator=(const Buffer&) = delete;

  ~Buffer() {
    if (!copies_) return;
    try {
      // A copy that still uses the host array keeps its memory.
      EventFrontier users = copies_->host_users();
      if (!users.empty()) torch_ops::retain_until(copies_->context(), cpu_, std::move(users));
    } catch (...) {  // nothing to tell it to
    }
  }

  py::object copy_to_gpu(py::handle n, py::handle stream) {
    const std::size_t nbytes = prefix_nbytes(n);
    if (copies_) {
      const StreamRef on = stream_of(stream);
      {
        const py::gil_scoped_release no_gil;
        copies_->upload(on, nbytes);
      }
    } else if (gpu_.is_cpu()) {
      std::memcpy(gpu_.mutable_data_ptr(), cpu_.const_data_ptr(), nbytes);
    }
    gpu_.unsafeGetTensorImpl()->bump_version();
    return prefix(gpu_, gpu_object_, gpu_view_, n);
  }

  py::object copy_to_cpu(py::handle n, py::handle stream) {
    const std::size_t nbytes = prefix_nbytes(n);
    if (copies_) {
      const StreamRef on = stream_of(stream);
      {
        const py::gil_scoped_release no_gil;
        copies_->download(on, nbytes);
      }
    } else if (gpu_.is_cpu()) {
      std::memcpy(cpu_.mutable_data_ptr(), gpu_.const_data_ptr(), nbytes);
    }
    cpu_.unsafeGetTensorImpl()->bump_version();
    return prefix(cpu_, cpu_object_, cpu_view_, n);
  }

  // Keeps the GIL: its answer and what the caller does with it are one step.
  bool in_flight() { return copies_ && copies_->host_in_flight(); }

  void wait() {
    if (!copies_) return;
    const py::gil_scoped_release no_gil;
    copies_->wait_host();
  }

 private:
  // The last prefix that was returned. It is handed out again only while nobody else holds
  // it and it is still what was made, so that nobody sees it change.
  struct View {
    std::int64_t n = -1;
    py::object object;
  };

  std::int64_t rows_argument(py::handle n) const {
    const std::int64_t rows = n.cast<std::int64_t>();
    STAGING_EXPECTS(rows >= 0 && rows <= rows_, "n must be in 0..", rows_,
                    " (the buffer's rows), got ", rows);
    return rows;
  }

  std::size_t prefix_nbytes(py::handle n) const {
    if (n.is_none()) return nbytes_;
    STAGING_EXPECTS(cpu_.dim() > 0, "n must be None for a buffer without dimensions");
    return static_cast<std::size_t>(rows_argument(n)) * row_nbytes_;
  }

  StreamRef stream_of(py::handle stream) {
    StreamRef on = torch_ops::current_stream(device_);
    if (!stream.is_none()) on.handle = *stream_argument(stream, device_);
    if (!(on == known_stream_)) {
      // Once per change of stream: the caching allocator remembers it until it frees.
      torch_ops::keep_device_memory(gpu_, on);
      known_stream_ = on;
    }
    return on;
  }

  py::object prefix(const at::TensorBase& tensor, const py::object& whole, View& view,
                    py::handle n) {
    if (n.is_none()) return whole;
    const std::int64_t rows = n.cast<std::int64_t>();
    if (rows == rows_) return whole;
    // A second reference to the tensor, of C++ or Python, shows in one of the two counts.
    if (view.n == rows && Py_REFCNT(view.object.ptr()) == 1 &&
        unchanged(unpack_tensor(view.object, "view"), tensor, rows)) {
      return view.object;
    }
    view.object = wrap_tensor(torch_ops::prefix_view(tensor, rows));
    view.n = rows;
    return view.object;
  }

  static bool unchanged(const at::TensorBase& view, const at::TensorBase& base, std::int64_t rows) {
    const c10::TensorImpl& impl = *view.unsafeGetTensorImpl();
    return view.use_count() == 1 && impl.sizes().size() == base.sizes().size() &&
           impl.sizes()[0] == rows && impl.sizes().slice(1) == base.sizes().slice(1) &&
           impl.strides() == base.strides() && impl.storage_offset() == base.storage_offset() &&
           impl.storage().unsafeGetStorageImpl() == base.storage().unsafeGetStorageImpl() &&
           impl.dtype() == base.dtype() && !impl.requires_grad();
  }

  const py::object cpu_object_;
  const py::object gpu_object_;
  const at::TensorBase cpu_;
  const at::TensorBase gpu_;
  const std::int64_t rows_;
  const std::size_t nbytes_;
  const std::size_t row_nbytes_;
  int device_ = -1;
  StreamRef known_stream_;                // whose use of `gpu` the caching allocator knows
  std::unique_ptr<BufferCopies> copies_;  // null: no device, copies are immediate
  View gpu_view_;
  View cpu_view_;
};

constexpr const char* kCopyToGpuDoc = R"(Copy the host array, or its first rows, to the device.

The host array may be overwritten as soon as this returns, through any view of it:
the bytes have been taken. The copy runs on ``stream`` in order with this buffer's
other copies.

Parameters
----------
n : int, optional
    How many rows of dimension 0; all of them by default.
stream : torch.cuda.Stream, optional
    Instead of the current stream of the buffer's device.

Returns
-------
torch.Tensor
    ``gpu`` or ``gpu[:n]``.

Raises
------
ValueError
    ``n`` is negative or larger than the buffer.
RuntimeError
    The stream captures a CUDA graph, or the process was forked after CUDA was
    initialised.

Notes
-----
Waits for nothing, except for the oldest copy in flight where the stream's upload ring
is full. It never waits for this copy, nor for the device or the stream as a whole.
)";

}  // namespace

void bind_buffer(py::module_& m) {
  py::class_<Buffer>(m, "Buffer")
      .def(py::init<py::object, py::object, bool>(), py::arg("cpu"), py::arg("gpu"),
           py::arg("pinned"))
      .def("copy_to_gpu", &Buffer::copy_to_gpu, py::arg("n") = py::none(), py::kw_only(),
           py::arg("stream") = py::none(), kCopyToGpuDoc)
      .def("_copy_to_cpu", &Buffer::copy_to_cpu, py::arg("n"), py::arg("stream"))
      .def("_in_flight", &Buffer::in_flight)
      .def("_wait", &Buffer::wait);
}

}  // namespace staging::bindings
