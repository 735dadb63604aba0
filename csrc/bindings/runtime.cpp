#include "bindings/bindings.h"
#include "transfer/device_context.h"

namespace staging::bindings {

namespace py = pybind11;

void bind_runtime(py::module_& m) {
#if defined(STAGING_WITH_CUDA)
  m.attr("built_with_cuda") = true;
#else
  m.attr("built_with_cuda") = false;
#endif
  m.def("backend", [] { return Runtime::get().backend() == Backend::kCuda ? "cuda" : "host"; });
  m.def("runtime_chosen", &Runtime::chosen);
  m.def("upload_ring_stats", [](int device) {
    const UploadRingStats stats = DeviceContext::of(device).ring_stats();
    py::dict result;
    result["capacity_nbytes"] = stats.capacity_nbytes;
    result["in_flight_nbytes"] = stats.in_flight_nbytes;
    result["in_flight_slots"] = stats.in_flight_slots;
    result["waits"] = stats.waits;
    result["waited_us"] = stats.waited_us;
    result["events"] = DeviceContext::of(device).events().created();
    return result;
  });
  m.def("trim", [](int device) {
    const py::gil_scoped_release no_gil;
    return DeviceContext::of(device).trim();
  });
}

}  // namespace staging::bindings
