#include "bindings/fetch.h"

#include <pybind11/stl.h>

#include <chrono>
#include <cmath>
#include <optional>

#include "bindings/bindings.h"
#include "bindings/torch_bridge.h"
#include "support/error.h"
#include "transfer/completion_queue.h"

namespace staging::bindings {

namespace py = pybind11;

bool wait_for(const Fetch& fetch, std::optional<double> timeout) {
  if (fetch.done()) return true;
  PollClock::time_point deadline = PollClock::time_point::max();
  if (timeout) {
    STAGING_EXPECTS(!std::isnan(*timeout), "timeout must be a number of seconds, got nan");
    const PollClock::time_point now = PollClock::now();
    const std::chrono::duration<double> left = deadline - now;
    if (*timeout < left.count()) {
      deadline = now + std::chrono::duration_cast<PollClock::duration>(
                           std::chrono::duration<double>(std::max(*timeout, 0.0)));
    }
  }
  const py::gil_scoped_release no_gil;
  return fetch.wait_until(deadline);
}

void notify(const Fetch& fetch, std::shared_ptr<CompletionQueue> queue, std::uint64_t token) {
  const py::gil_scoped_release no_gil;
  fetch.notify(std::move(queue), token);
}

void bind_fetch(py::module_& m) {
  py::class_<CompletionQueue, std::shared_ptr<CompletionQueue>>(m, "CompletionQueue")
      .def(py::init())
      .def("fileno", &CompletionQueue::fd)
      .def("drain", &CompletionQueue::drain);
  py::class_<FetchHandle>(m, "FetchHandle")
      .def("done", [](const FetchHandle& handle) { return handle.fetch.done(); })
      .def(
          "wait",
          [](const FetchHandle& handle, std::optional<double> timeout) {
            return wait_for(handle.fetch, timeout);
          },
          py::arg("timeout"))
      .def("tensor", [](const FetchHandle& handle) { return wrap_tensor(handle.tensor); })
      .def("notify", [](const FetchHandle& handle, std::shared_ptr<CompletionQueue> queue,
                        std::uint64_t token) { notify(handle.fetch, std::move(queue), token); });
}

}  // namespace staging::bindings
