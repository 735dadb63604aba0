#include "bindings/bindings.h"
#include "torch_ops/device_hooks.h"
#include "transfer/device_context.h"

namespace staging::bindings {

namespace py = pybind11;

void bind_runtime(py::module_& m) {
  torch_ops::install_device_hooks();
#if defined(STAGING_WITH_CUDA)
  m.attr("built_with_cuda") = true;
#else
  m.attr("built_with_cuda") = false;
#endif
  m.def("backend", [] { return Runtime::get().backend() == Backend::kCuda ? "cuda" : "host"; });
  m.def("runtime_chosen", &Runtime::chosen);
  m.def("upload_stats", [](int device) {
    const UploadRingStats stats = DeviceContext::of(device).ring_stats();
    return py::make_tuple(stats.capacity_nbytes, stats.in_flight_nbytes, stats.in_flight_slots,
                          stats.waits, stats.waited_us, DeviceContext::ring_limit(),
                          DeviceContext::of(device).events().created(),
                          DeviceContext::of(device).events().idle());
  });
  m.def("set_upload_limit", &DeviceContext::set_ring_limits);
  m.def("upload_limit", &DeviceContext::ring_limit);
  m.def("reap", [](int device) {
    const py::gil_scoped_release no_gil;
    return DeviceContext::of(device).reap();
  });
  m.def("trim", [](int device) {
    const py::gil_scoped_release no_gil;
    return DeviceContext::of(device).trim();
  });
}

}  // namespace staging::bindings
