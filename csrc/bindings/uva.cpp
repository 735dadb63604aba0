#include "torch_ops/uva.h"
#include "bindings/bindings.h"
#include "bindings/torch_bridge.h"
#include "runtime/device_scope.h"
#include "support/error.h"
#include "torch_ops/tensor_access.h"
#include "transfer/host_view.h"

namespace staging::bindings {

namespace py = pybind11;

namespace {

// What the device may still be reading in one of several slots.
class StreamPoint {
 public:
  // What `stream` of `device` holds by now.
  StreamPoint(int device, py::handle stream) {
    const StreamRef on =
        stream.is_none() ? torch_ops::current_stream(device) : *stream_argument(stream, device);
    const py::gil_scoped_release no_gil;
    Runtime::check_not_forked();
    DeviceContext& context = DeviceContext::of(device);
    const DeviceScope scope(context.runtime(), device);
    if (context.runtime().capture_status(device, on.handle) != CaptureStatus::kNone) {
      throw StateError(
          "the slots of a UvaBuffer cannot be written on a stream that captures a CUDA graph: "
          "nothing tells when its replays have read them. Write before the capture");
    }
    event_ = context.events().acquire();
    event_.record(on);
  }
  // Blocks until the stream has passed it.
  void wait() const {
    const py::gil_scoped_release no_gil;
    Runtime::check_not_forked();
    event_.synchronize();
  }

 private:
  Event event_;
};

}  // namespace

void bind_uva(py::module_& m) {
  m.def(
      "uva_view",
      [](py::handle tensor, int device) {
        return wrap_tensor(torch_ops::uva_view(unpack_tensor(tensor, "tensor"), device));
      },
      py::arg("tensor"), py::arg("device"));
  m.def(
      "sees_host_writes",
      [](int device) {
        const py::gil_scoped_release no_gil;
        return sees_host_writes(DeviceContext::of(device));
      },
      py::arg("device"));
  py::class_<StreamPoint>(m, "StreamPoint")
      .def(py::init<int, py::handle>(), py::arg("device"), py::arg("stream"))
      .def("wait", &StreamPoint::wait);
}

}  // namespace staging::bindings
