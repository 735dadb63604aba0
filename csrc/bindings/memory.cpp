// Pinned memory for Python: staging/memory.py documents it.
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>

#include <optional>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/torch_bridge.h"
#include "memory/pinned_pool.h"
#include "torch_ops/host_allocator.h"
#include "transfer/device_context.h"

namespace staging::bindings {

namespace py = pybind11;

namespace {

// The signal handler's exception is pending in this thread; PyTorch's callers restore it.
void throw_python_interrupt() {
  const py::gil_scoped_acquire gil;
  if (PyErr_Occurred() == nullptr) PyErr_SetNone(PyExc_KeyboardInterrupt);
  python_error error;
  error.persist();
  throw error;
}

py::object pinned_empty(const std::vector<std::int64_t>& sizes,
                        const std::optional<std::vector<std::int64_t>>& strides, py::handle dtype,
                        int device, int numa_node) {
  if (!THPDtype_Check(dtype.ptr())) {
    throw py::type_error(std::string("dtype must be a torch.dtype, got ") +
                         Py_TYPE(dtype.ptr())->tp_name);
  }
  const auto scalar_type = reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type;
  at::TensorBase tensor;
  try {
    const py::gil_scoped_release no_gil;
    std::optional<c10::IntArrayRef> stride_ref;
    if (strides) stride_ref = *strides;
    tensor = torch_ops::pinned_empty(sizes, stride_ref, scalar_type, device, numa_node);
  } catch (python_error& error) {
    error.restore();
    throw py::error_already_set();
  }
  return wrap_tensor(tensor);
}

py::dict pinned_stats() {
  PinnedStats stats;
  stats.limit_nbytes = PinnedPool::process_limit();
  if (Runtime::chosen()) {
    const py::gil_scoped_release no_gil;
    stats = PinnedPool::get(Runtime::get()).stats();
  }
  py::dict result;
  result["allocated"] = stats.allocated_nbytes;
  result["in_use"] = stats.in_use_nbytes;
  result["in_flight"] = stats.in_flight_nbytes;
  result["cached"] = stats.cached_nbytes;
  result["lost"] = stats.lost_nbytes;
  result["peak"] = stats.peak_nbytes;
  result["peak_in_use"] = stats.peak_in_use_nbytes;
  result["limit"] = stats.limit_nbytes == SIZE_MAX ? py::object(py::none())
                                                   : py::object(py::int_(stats.limit_nbytes));
  result["count"] = stats.count;
  result["regions"] = stats.regions;
  result["allocations"] = stats.allocations;
  result["pinnings"] = stats.pinnings;
  result["waits"] = stats.waits;
  result["failures"] = stats.failures;
  return result;
}

std::size_t pinned_trim() {
  if (!Runtime::chosen()) return 0;
  const py::gil_scoped_release no_gil;
  std::size_t nbytes = PinnedPool::get(Runtime::get()).trim();
  DeviceContext::for_each([&](DeviceContext& context) { nbytes += context.trim(); });
  return nbytes;
}

}  // namespace

void bind_memory(py::module_& m) {
  torch_ops::set_throw_interrupt(&throw_python_interrupt);
  m.def("pinned_empty", &pinned_empty);
  m.def("pinned_stats", &pinned_stats);
  m.def("pinned_trim", &pinned_trim);
  m.def("set_pinned_limit", [](std::optional<std::size_t> nbytes) {
    const py::gil_scoped_release no_gil;
    PinnedPool::set_process_limit(nbytes.value_or(SIZE_MAX));
  });
  m.def("set_pinned_huge_pages", &PinnedPool::set_process_huge_pages);
  m.def("own_pinned", &torch_ops::own_pinned);
  m.def("owns_pinned", &torch_ops::owns_pinned);
  m.def("online_nodes", &online_nodes);
  m.def("node_of",
        [](std::uintptr_t address) { return node_of(reinterpret_cast<const void*>(address)); });
}

}  // namespace staging::bindings
