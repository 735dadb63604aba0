#include <c10/util/Exception.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "bindings/bindings.h"
#include "bindings/fetch.h"
#include "bindings/torch_bridge.h"
#include "hash/blake3.h"
#include "torch_ops/digest.h"

namespace staging::bindings {

namespace py = pybind11;

namespace {

// Below this the GIL is kept: giving it up costs more than the hash.
constexpr py::ssize_t kGilNbytes = 4096;

py::bytes to_bytes(const Blake3Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

void update(Blake3& hasher, py::handle data) {
  Py_buffer view;
  if (PyObject_GetBuffer(data.ptr(), &view, PyBUF_SIMPLE) != 0) throw py::error_already_set();
  const std::unique_ptr<Py_buffer, decltype(&PyBuffer_Release)> release(&view, &PyBuffer_Release);
  if (view.len < kGilNbytes) {
    hasher.update(view.buf, static_cast<std::size_t>(view.len));
  } else {
    const py::gil_scoped_release no_gil;
    hasher.update(view.buf, static_cast<std::size_t>(view.len));
  }
}

std::unique_ptr<PendingDigests> start_digests(const py::sequence& tensors, py::handle stream) {
  std::vector<at::TensorBase> unpacked;
  for (const py::handle tensor : tensors) unpacked.push_back(unpack_tensor(tensor, "tensors"));
  const std::optional<StreamRef> on =
      stream.is_none() ? std::nullopt : stream_argument(stream, unpacked.at(0).device().index());
  try {
    const py::gil_scoped_release no_gil;
    return std::make_unique<PendingDigests>(torch_ops::start_digests(unpacked, on));
  } catch (const c10::OutOfMemoryError& error) {
    // As torch's own functions do.
    PyErr_SetString(py::module_::import("torch").attr("OutOfMemoryError").ptr(),
                    error.what_without_backtrace());
    throw py::error_already_set();
  }
}

py::list digests(const PendingDigests& pending) {
  py::list list;
  for (const Blake3Digest& digest : pending.digests()) list.append(to_bytes(digest));
  return list;
}

// A contiguous host tensor's bytes, good as long as the caller holds the tensor; None for any
// other tensor. Unlike tensor_data's view it leaves the storage resizable.
py::object borrowed_bytes(py::handle object) {
  const at::TensorBase& tensor = unpack_tensor(object, "tensor");
  if (!tensor.is_cpu() || !torch_ops::is_plain(tensor)) return py::none();
  const StridedBytes bytes = torch_ops::TensorMemory(tensor).strided();
  static const char nothing = 0;  // the buffer protocol wants an address, even of zero bytes
  return py::memoryview::from_memory(bytes.data == nullptr ? &nothing : bytes.data,
                                     static_cast<py::ssize_t>(tensor.nbytes()));
}

// The next block as a view that is good until the next call; None at the end.
template <typename Blocks>
py::object next_block(Blocks& blocks) {
  std::span<const std::byte> block;
  {
    const py::gil_scoped_release no_gil;
    block = blocks.next();
  }
  if (block.empty()) return py::none();
  return py::memoryview::from_memory(block.data(), static_cast<py::ssize_t>(block.size()));
}

}  // namespace

void bind_hash(py::module_& m) {
  py::class_<Blake3>(m, "Blake3")
      .def(py::init<>())
      .def("update", &update, py::arg("data"))
      .def("digest", [](const Blake3& hasher) { return to_bytes(hasher.digest()); })
      .def("copy", [](const Blake3& hasher) { return hasher; });
  py::class_<PendingDigests>(m, "PendingDigests")
      .def(py::init(&start_digests), py::arg("tensors"), py::arg("stream") = py::none())
      .def("done", [](const PendingDigests& pending) { return pending.fetch().done(); })
      .def(
          "wait",
          [](const PendingDigests& pending, std::optional<double> timeout) {
            return wait_for(pending.fetch(), timeout);
          },
          py::arg("timeout") = py::none())
      .def("notify", [](const PendingDigests& pending, std::shared_ptr<CompletionQueue> queue,
                        std::uint64_t token) { notify(pending.fetch(), std::move(queue), token); })
      .def("digests", &digests);
  py::class_<torch_ops::HostBlocks>(m, "HostBlocks")
      .def(py::init([](py::handle tensor, std::size_t block_nbytes) {
             return std::make_unique<torch_ops::HostBlocks>(unpack_tensor(tensor, "tensor"),
                                                            block_nbytes);
           }),
           py::arg("tensor"), py::arg("block_nbytes"))
      .def("next", &next_block<torch_ops::HostBlocks>);
  py::class_<torch_ops::DeviceBlocks>(m, "DeviceBlocks")
      .def(py::init([](py::handle object, py::handle stream, std::size_t block_nbytes) {
             const at::TensorBase& tensor = unpack_tensor(object, "tensor");
             const auto on = stream_argument(stream, tensor.device().index());
             return std::make_unique<torch_ops::DeviceBlocks>(tensor, on, block_nbytes);
           }),
           py::arg("tensor"), py::arg("stream"), py::arg("block_nbytes"))
      .def("next", &next_block<torch_ops::DeviceBlocks>);
  m.def("borrowed_bytes", &borrowed_bytes, py::arg("tensor"));
  // TypeError where its storage is smaller than its shape needs.
  m.def("check_memory",
        [](py::handle tensor) { torch_ops::TensorMemory(unpack_tensor(tensor, "tensor")); });
  m.def("can_index_on_device",
        [](py::handle tensor) { return torch_ops::can_index(unpack_tensor(tensor, "tensor")); });
}

}  // namespace staging::bindings
