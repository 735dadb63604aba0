#include <string>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/torch_bridge.h"
#include "runtime/device_scope.h"
#include "support/error.h"
#include "torch_ops/tensor_access.h"
#include "transfer/cost_table.h"
#include "transfer/method_timer.h"

namespace staging::bindings {

namespace py = pybind11;

namespace {

constexpr const char* kDirections[] = {"host_to_device", "device_to_host", "device_to_device"};
constexpr const char* kMethods[] = {"copy", "batch", "kernel"};

CopyKind kind_of(const std::string& direction) {
  if (direction == kDirections[0]) return CopyKind::kHostToDevice;
  if (direction == kDirections[1]) return CopyKind::kDeviceToHost;
  if (direction == kDirections[2]) return CopyKind::kDeviceToDevice;
  throw InvalidArgument(
      "direction must be 'host_to_device', 'device_to_host' or 'device_to_device', got '" +
      direction + "'");
}

CopyMethod method_of(const std::string& method) {
  for (std::size_t i = 0; i < kCopyMethods; ++i) {
    if (method == kMethods[i]) return static_cast<CopyMethod>(i);
  }
  throw InvalidArgument("method must be 'copy', 'batch' or 'kernel', got '" + method + "'");
}

// direction -> method -> {fixed_us, item_us, gb_per_s}
py::dict as_dict(const CostTable& table) {
  py::dict result;
  for (const char* direction : kDirections) {
    py::dict methods;
    for (std::size_t i = 0; i < kCopyMethods; ++i) {
      const MethodCost& cost = table.of(kind_of(direction))[i];
      py::dict entry;
      entry["fixed_us"] = cost.fixed_us;
      entry["item_us"] = cost.item_us;
      entry["gb_per_s"] = cost.gb_per_s;
      methods[kMethods[i]] = entry;
    }
    result[direction] = methods;
  }
  return result;
}

CostTable from_dict(const py::dict& dict) {
  CostTable table;
  for (const char* direction : kDirections) {
    for (std::size_t i = 0; i < kCopyMethods; ++i) {
      const py::object entry = dict[direction][kMethods[i]];
      table.of(kind_of(direction))[i] = {.fixed_us = entry["fixed_us"].cast<double>(),
                                         .item_us = entry["item_us"].cast<double>(),
                                         .gb_per_s = entry["gb_per_s"].cast<double>()};
    }
  }
  return table;
}

// The copies that are timed, with what they need checked.
struct TimedCopies {
  TimedCopies(const std::string& direction, const std::string& way, py::handle to, py::handle from,
              std::size_t items, std::size_t item_nbytes)
      : kind(kind_of(direction)),
        method(method_of(way)),
        dst(unpack_tensor(to, "to")),
        src(unpack_tensor(from, "from")),
        count(items),
        nbytes(item_nbytes) {
    STAGING_EXPECTS(nbytes > 0 && count > 0, "count and nbytes must be > 0");
    const std::size_t needed = method_timer_nbytes(count, nbytes);
    STAGING_EXPECTS(dst.nbytes() >= needed && src.nbytes() >= needed, "to and from must have ",
                    needed, " bytes, got ", dst.nbytes(), " and ", src.nbytes());
    const at::TensorBase& on_device = kind == CopyKind::kDeviceToHost ? src : dst;
    STAGING_EXPECTS(on_device.is_cuda(), "the device's side must be a CUDA tensor, got ",
                    on_device.device());
    device = on_device.device().index();
    stream = torch_ops::current_stream(device);
  }

  template <typename Run>
  auto run(Run&& run_method, std::size_t repetitions) const {
    const py::gil_scoped_release no_gil;
    DeviceContext& context = DeviceContext::of(device);
    const DeviceScope scope(context.runtime(), device);
    return run_method(context, stream, method, kind, dst.mutable_data_ptr(), src.const_data_ptr(),
                      count, nbytes, repetitions);
  }

  CopyKind kind;
  CopyMethod method;
  at::TensorBase dst, src;
  std::size_t count, nbytes;
  int device;
  StreamRef stream;
};

// Pairs (host_us, total_us); None where the method cannot be used.
py::object time_copies(const std::string& direction, const std::string& method, py::handle to,
                       py::handle from, std::size_t count, std::size_t nbytes,
                       std::size_t repetitions) {
  const TimedCopies copies(direction, method, to, from, count, nbytes);
  const std::vector<MethodTime> times = copies.run(time_method, repetitions);
  if (times.empty()) return py::none();
  py::list result;
  for (const MethodTime& time : times) result.append(py::make_tuple(time.host_us, time.total_us));
  return result;
}

bool repeat_copies(const std::string& direction, const std::string& method, py::handle to,
                   py::handle from, std::size_t count, std::size_t nbytes,
                   std::size_t repetitions) {
  return TimedCopies(direction, method, to, from, count, nbytes).run(repeat_method, repetitions);
}

}  // namespace

void bind_cost(py::module_& m) {
  m.def("default_cost_table", [] { return as_dict(CostTable::defaults()); });
  m.def(
      "cost_table", [](int device) { return as_dict(CostTable::current(device)); },
      py::arg("device"));
  m.def(
      "set_cost_table",
      [](int device, const py::dict& table) { CostTable::set_current(device, from_dict(table)); },
      py::arg("device"), py::arg("table"));
  m.def("time_copies", &time_copies, py::arg("direction"), py::arg("method"), py::arg("to"),
        py::arg("from_"), py::arg("count"), py::arg("nbytes"), py::arg("repetitions"));
  m.def("repeat_copies", &repeat_copies, py::arg("direction"), py::arg("method"), py::arg("to"),
        py::arg("from_"), py::arg("count"), py::arg("nbytes"), py::arg("repetitions"));
  m.def("time_copies_nbytes", &method_timer_nbytes, py::arg("count"), py::arg("nbytes"));
}

}  // namespace staging::bindings
