#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "bindings/arguments.h"
#include "bindings/bindings.h"
#include "bindings/buffer.h"
#include "bindings/fetch.h"
#include "bindings/group.h"
#include "bindings/host_guard.h"
#include "bindings/slow_path.h"
#include "bindings/torch_bridge.h"
#include "support/error.h"
#include "support/nvtx.h"
#include "support/slow_path.h"
#include "torch_ops/host_allocator.h"
#include "torch_ops/tensor_access.h"
#include "transfer/buffer_copies.h"

namespace staging::bindings {

namespace py = pybind11;

namespace {

// A snapshot of this size costs some 67 us of host time.
constexpr std::size_t kHintNbytes = std::size_t{1} << 20;

constexpr SlowPath kPageableDestination{"pin_memory=False",
                                        "makes copy_to_cpu() wait until the bytes are there",
                                        "make the buffer with pin_memory=True, or use fetch()"};

Reuse reuse_argument(const std::string& name) {
  if (name == "snapshot") return Reuse::kSnapshot;
  if (name == "wait") return Reuse::kWait;
  if (name == "unchecked") return Reuse::kUnchecked;
  throw InvalidArgument("reuse must be 'snapshot', 'wait' or 'unchecked', got '" + name + "'");
}

// For n=None.
constexpr std::int64_t kAllRows = -1;

// A slot that the user writes. It exports its memory through the buffer protocol, and keeps it
// as long as somebody looks at it.
class FillSlot {
 public:
  FillSlot(ReservedSlot slot, std::int64_t rows, std::size_t nbytes)
      : pinned_(slot.slot().block()),
        data_(slot.data()),
        rows_(rows),
        nbytes_(nbytes),
        slot_(std::move(slot)) {}
  // Without a device: ordinary memory.
  FillSlot(std::int64_t rows, std::size_t nbytes)
      : pageable_(std::make_unique<std::byte[]>(std::max<std::size_t>(nbytes, 1))),
        data_(pageable_.get()),
        rows_(rows),
        nbytes_(nbytes) {}

  py::buffer_info info() const {
    return py::buffer_info(reinterpret_cast<std::uint8_t*>(data_),
                           static_cast<py::ssize_t>(nbytes_));
  }
  const std::byte* data() const noexcept { return data_; }
  std::size_t nbytes() const noexcept { return nbytes_; }
  std::int64_t rows() const noexcept { return rows_; }
  std::optional<ReservedSlot> take() { return std::exchange(slot_, std::nullopt); }
  void abandon() { slot_.reset(); }

 private:
  std::shared_ptr<PinnedBlock> pinned_;
  std::unique_ptr<std::byte[]> pageable_;
  std::byte* data_;
  std::int64_t rows_;  // kAllRows where all of them
  std::size_t nbytes_;
  std::optional<ReservedSlot> slot_;  // until it is uploaded or given up
};

// The base of staging.CpuGpuBuffer: a pair of dense tensors of one shape and the copies
// between them. The Python class makes the tensors.
class Buffer {
 public:
  Buffer(py::object cpu, py::object gpu, bool pinned, const std::string& reuse, std::string name,
         py::handle group)
      : cpu_object_(std::move(cpu)),
        gpu_object_(std::move(gpu)),
        cpu_(unpack_tensor(cpu_object_, "cpu")),
        gpu_(unpack_tensor(gpu_object_, "gpu")),
        host_storage_(cpu_.storage()),
        device_storage_(gpu_.storage()),
        host_(static_cast<std::byte*>(cpu_.mutable_data_ptr())),
        device_data_(static_cast<std::byte*>(gpu_.mutable_data_ptr())),
        shape_(cpu_.sizes().begin(), cpu_.sizes().end()),
        rows_(cpu_.dim() > 0 ? cpu_.size(0) : 0),
        nbytes_(cpu_.nbytes()),
        row_nbytes_(rows_ > 0 ? nbytes_ / static_cast<std::size_t>(rows_) : 0),
        pinned_(pinned),
        reuse_(reuse_argument(reuse)),
        name_(std::move(name)),
        streams_(gpu_) {
    if (gpu_.is_cuda()) {
      device_ = gpu_.device().index();
      copies_ = std::make_unique<BufferCopies>(
          DeviceContext::of(device_),
          BufferCopies::Arrays{.host = host_,
                               .host_is_pinned = pinned,
                               .device = device_data_,
                               .nbytes = nbytes_,
                               .host_owner = std::make_shared<c10::Storage>(host_storage_),
                               .device_owner = std::make_shared<c10::Storage>(device_storage_)},
          reuse_, order_of_group(group));
      if (group.is_none()) copies_->filled_on(streams_.last());  // a group does that for all
    }
  }
  Buffer(const Buffer&) = delete;  // one order of copies
  Buffer& operator=(const Buffer&) = delete;

  BufferParts parts() {
    return {&cpu_, &gpu_, host_, device_data_, rows_, nbytes_, row_nbytes_, copies_.get(), &guard_};
  }

  void set_guard(py::handle self, py::object open_class, py::object guarded_class) {
    guard_.set(self, std::move(open_class), std::move(guarded_class));
  }

  py::object copy_to_gpu(py::handle n, py::handle stream) {
    const std::int64_t rows = rows_argument(n);
    const std::size_t nbytes = prefix_nbytes(rows);
    const NvtxRange range(name_, "copy_to_gpu");
    if (copies_) {
      if (nbytes > kHintNbytes && reuse_ == Reuse::kSnapshot) hint_once(nbytes);
      const StreamRef on = streams_.of(stream);
      enqueue([&] { return copies_->upload(on, nbytes); });
    } else if (gpu_.is_cpu()) {
      std::memcpy(device_data_, host_, nbytes);
      count(host_counts_.to_gpu, host_counts_.to_gpu_nbytes, nbytes);
    }
    gpu_.unsafeGetTensorImpl()->bump_version();
    return prefix(gpu_, gpu_object_, gpu_view_, rows);
  }

  py::object copy_to_cpu(py::handle n, py::handle stream) {
    const std::int64_t rows = rows_argument(n);
    const std::size_t nbytes = prefix_nbytes(rows);
    const NvtxRange range(name_, "copy_to_cpu");
    if (copies_) {
      if (!pinned_ && nbytes > 0) report_slow_path(kPageableDestination);
      const StreamRef on = streams_.of(stream);
      enqueue([&] {
        copies_->download(on, nbytes);
        return nbytes > 0 && reuse_ != Reuse::kUnchecked;
      });
    } else if (gpu_.is_cpu()) {
      std::memcpy(host_, device_data_, nbytes);
      count(host_counts_.to_cpu, host_counts_.to_cpu_nbytes, nbytes);
    }
    cpu_.unsafeGetTensorImpl()->bump_version();
    return prefix(cpu_, cpu_object_, cpu_view_, rows);
  }

  std::unique_ptr<FillSlot> begin_fill(py::handle n, py::handle stream) {
    const std::int64_t rows = rows_argument(n);
    const std::size_t nbytes = prefix_nbytes(rows);
    if (!copies_ || nbytes == 0) return std::make_unique<FillSlot>(rows, nbytes);
    const StreamRef on = streams_.of(stream);
    const py::gil_scoped_release no_gil;
    return std::make_unique<FillSlot>(copies_->begin_fill(on, nbytes), rows, nbytes);
  }

  void end_fill(FillSlot& fill) {
    const NvtxRange range(name_, "fill");
    if (std::optional<ReservedSlot> slot = fill.take()) {
      const py::gil_scoped_release no_gil;
      copies_->end_fill(std::move(*slot), fill.nbytes());
    } else if (gpu_.is_cpu()) {
      std::memcpy(device_data_, fill.data(), fill.nbytes());
      count(host_counts_.to_gpu, host_counts_.to_gpu_nbytes, fill.nbytes());
    }
    gpu_.unsafeGetTensorImpl()->bump_version();
  }

  std::unique_ptr<FetchHandle> fetch(py::handle n, py::handle stream) {
    const std::int64_t rows = rows_argument(n);
    const std::size_t nbytes = prefix_nbytes(rows);
    const NvtxRange range(name_, "fetch");
    c10::SmallVector<std::int64_t, 5> sizes = shape_;
    if (rows != kAllRows) sizes[0] = rows;
    auto handle = std::make_unique<FetchHandle>();
    if (!copies_) {
      handle->tensor = torch_ops::host_tensor(sizes, gpu_.scalar_type());
      if (gpu_.is_cpu()) {
        std::memcpy(handle->tensor.mutable_data_ptr(), device_data_, nbytes);
      }
      count(host_counts_.fetches, host_counts_.to_cpu_nbytes, nbytes);
      return handle;
    }
    const StreamRef on = streams_.of(stream);
    const py::gil_scoped_release no_gil;
    torch_ops::watch_copies();  // the user may let PyTorch copy the result on
    PinnedBlock block = copies_->context().pool().allocate(nbytes, device_);
    bool lost = false;
    try {
      handle->fetch = copies_->fetch(on, block.data(), nbytes, &lost);
    } catch (...) {
      if (lost) block.detach();  // leaked: the copy may run yet
      throw;
    }
    // Whatever becomes of the tensor, its memory is not reused before the copy is done.
    if (handle->fetch.event()) block.add_gate(handle->fetch.event());
    handle->tensor = torch_ops::tensor_of_block(std::move(block), sizes, gpu_.scalar_type());
    return handle;
  }

  void refill(py::handle n, py::handle stream) {
    const std::size_t nbytes = prefix_nbytes(rows_argument(n));
    if (!copies_) {
      throw StateError("refill() is for copies in a CUDA graph; this buffer is on " +
                       gpu_.device().str());
    }
    const NvtxRange range(name_, "refill");
    const StreamRef on = streams_.of(stream);
    const py::gil_scoped_release no_gil;
    copies_->refill(on, nbytes);
  }

  // Until the host array is the host's; opens the guard then.
  void wait_host() {
    if (!copies_) return;
    while (copies_->host_in_flight()) {
      const NvtxRange range(name_, "wait");
      const py::gil_scoped_release no_gil;
      copies_->wait_host();
    }
    // A copy that was refused because of it left nothing in flight, and old bytes here.
    copies_->context().runtime().check_context();
    // Here with the GIL, which was not dropped since the check.
    guard_.open();
  }

  bool pinned() const { return pinned_; }
  const char* reuse() const {
    return reuse_ == Reuse::kSnapshot ? "snapshot" : reuse_ == Reuse::kWait ? "wait" : "unchecked";
  }
  bool in_flight() { return copies_ && copies_->host_in_flight(); }

  py::tuple stats() {
    BufferCounts counts = host_counts_;
    std::size_t slots = 0;
    if (copies_) {
      const py::gil_scoped_release no_gil;
      Runtime::check_not_forked();
      counts = copies_->counts();
      slots = copies_->slots_in_flight();
    }
    return py::make_tuple(counts.to_gpu, counts.to_cpu, counts.fetches, counts.captured,
                          counts.to_gpu_nbytes, counts.to_cpu_nbytes, counts.waits,
                          counts.waited_us, slots);
  }

 private:
  // The last prefix that was returned. It is handed out again only while nobody else holds
  // it and it is still what was made, so that nobody sees it change.
  struct View {
    std::int64_t n = -1;
    py::object object;
  };

  // Runs `operation`, which says whether the device uses the host array now, without the GIL.
  template <typename Operation>
  void enqueue(Operation operation) {
    bool uses_host = false;
    try {
      const py::gil_scoped_release no_gil;
      uses_host = operation();
    } catch (...) {
      // It may have been enqueued, and interrupted. The next read finds out.
      if (reuse_ != Reuse::kUnchecked) guard_.close();
      throw;
    }
    if (uses_host) guard_.close();
  }

  void hint_once(std::size_t nbytes) const {
    static std::atomic<bool> hinted{false};
    if (hinted.exchange(true, std::memory_order_relaxed)) return;
    warn_user(staging_hint(),
              detail::join_message(
                  "copy_to_gpu() of ", nbytes / 1024,
                  " KiB first takes a snapshot of the host array, a host copy of some 67 us for "
                  "each MiB. fill(n) writes straight into pinned memory instead, and "
                  "reuse='wait' lets the transfer read the array itself. (This is said once.)"));
  }

  static void count(std::uint64_t& calls, std::uint64_t& sum, std::size_t nbytes) {
    if (nbytes == 0) return;
    ++calls;
    sum += nbytes;
  }

  // The one conversion of `n`: what it says a second time may be something else.
  std::int64_t rows_argument(py::handle n) const {
    if (n.is_none()) return kAllRows;
    STAGING_EXPECTS(cpu_.dim() > 0, "n must be None for a buffer without dimensions, got ",
                    shown(n));
    return int_argument(n, "n", 0, rows_, "the buffer's rows");
  }

  std::size_t prefix_nbytes(std::int64_t rows) const {
    return rows == kAllRows ? nbytes_ : static_cast<std::size_t>(rows) * row_nbytes_;
  }

  py::object prefix(const at::TensorBase& tensor, const py::object& whole, View& view,
                    std::int64_t rows) {
    if (rows == kAllRows) return whole;
    if (rows == rows_) return whole;
    // A second reference to the tensor, of C++ or Python, shows in one of the two counts.
    if (view.n == rows && Py_REFCNT(view.object.ptr()) == 1 &&
        unchanged(unpack_tensor(view.object, "view"), tensor, rows)) {
      return view.object;
    }
    if (tensor.dim() == 0 || rows > tensor.size(0)) {
      throw StateError("an array of the buffer was resized, or given other memory: it has " +
                       std::to_string(tensor.dim() == 0 ? 0 : tensor.size(0)) +
                       " rows instead of " + std::to_string(rows_) +
                       "; let a buffer keep the arrays that it has made");
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
  // The arrays as they were made. Python may resize their tensors, or give them other memory.
  const c10::Storage host_storage_;
  const c10::Storage device_storage_;
  std::byte* const host_;
  std::byte* const device_data_;
  const c10::SmallVector<std::int64_t, 5> shape_;
  const std::int64_t rows_;
  const std::size_t nbytes_;
  const std::size_t row_nbytes_;
  const bool pinned_;
  const Reuse reuse_;
  const std::string name_;
  TensorStreams streams_;
  int device_ = -1;
  std::unique_ptr<BufferCopies> copies_;  // null: no device, copies are immediate
  BufferCounts host_counts_;              // of those
  HostGuard guard_;
  View gpu_view_;
  View cpu_view_;
};

constexpr const char* kCopyToGpuDoc = R"(Copy the host array, or its first rows, to the device.

Under ``reuse="snapshot"`` the host array may be overwritten as soon as this returns,
through any view of it: the bytes have been taken. Under ``"wait"`` reading ``np`` or
``cpu`` waits for the copy, and a view that was taken before must not be written until
then. The copy runs on ``stream`` in order with this buffer's other copies.

Where the stream captures a CUDA graph, the copy becomes part of the graph and reads
pinned memory of its own at each replay; see ``refill``.

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
    The process was forked after CUDA was initialised.

Notes
-----
Waits for nothing, except for the oldest copy in flight where the stream has more in
flight than ``staging.set_upload_limit`` allows. It never waits for this copy, nor for
the device or the stream as a whole.
)";

constexpr const char* kCopyToCpuDoc = R"(Copy the device array, or its first rows, to the host.

Parameters
----------
n : int, optional
    How many rows of dimension 0; all of them by default.
stream : torch.cuda.Stream, optional
    Instead of the current stream of the buffer's device.

Returns
-------
torch.Tensor
    ``cpu`` or ``cpu[:n]``. This view, like any that was taken before, is not guarded:
    read it only after ``np`` or ``cpu`` has been read, or the stream has been waited for.

Raises
------
ValueError
    ``n`` is negative or larger than the buffer.
RuntimeError
    The stream captures a CUDA graph, or the process was forked after CUDA was
    initialised.

Notes
-----
Waits for nothing, except where the host array is not pinned: then it returns when the
bytes are there. The next read of ``np`` or ``cpu`` waits for the copy (except under
``reuse="unchecked"``).
)";

}  // namespace

BufferParts parts_of_buffer(py::handle buffer) {
  return buffer.cast<Buffer&>().parts();
}

void bind_buffer(py::module_& m) {
  py::class_<FillSlot>(m, "FillSlot", py::buffer_protocol())
      .def_buffer([](const FillSlot& slot) { return slot.info(); })
      .def("rows", &FillSlot::rows)
      .def("abandon", &FillSlot::abandon);
  py::class_<Buffer>(m, "Buffer")
      .def(py::init<py::object, py::object, bool, const std::string&, std::string, py::handle>(),
           py::arg("cpu"), py::arg("gpu"), py::arg("pinned"), py::arg("reuse"), py::arg("name"),
           py::arg("group") = py::none())
      .def("copy_to_gpu", &Buffer::copy_to_gpu, py::arg("n") = py::none(), py::kw_only(),
           py::arg("stream") = py::none(), kCopyToGpuDoc)
      .def("copy_to_cpu", &Buffer::copy_to_cpu, py::arg("n") = py::none(), py::kw_only(),
           py::arg("stream") = py::none(), kCopyToCpuDoc)
      .def("_set_guard",
           [](py::handle self, py::object open_class, py::object guarded_class) {
             self.cast<Buffer&>().set_guard(self, std::move(open_class), std::move(guarded_class));
           })
      .def("_begin_fill", &Buffer::begin_fill, py::arg("n"), py::arg("stream"))
      .def("_end_fill", &Buffer::end_fill, py::arg("slot"))
      .def("_fetch", &Buffer::fetch, py::arg("n"), py::arg("stream"))
      .def("_refill", &Buffer::refill, py::arg("n"), py::arg("stream"))
      .def("_wait_host", &Buffer::wait_host)
      .def("_pinned", &Buffer::pinned)
      .def("_reuse", &Buffer::reuse)
      .def("_in_flight", &Buffer::in_flight)
      .def("_stats", &Buffer::stats);
}

}  // namespace staging::bindings
