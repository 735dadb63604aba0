#include "bindings/group.h"

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/buffer.h"
#include "bindings/torch_bridge.h"
#include "support/error.h"
#include "support/nvtx.h"
#include "support/slow_path.h"
#include "torch_ops/tensor_access.h"
#include "transfer/group_copies.h"

namespace staging::bindings {

namespace py = pybind11;

namespace {

constexpr SlowPath kPageableArena{"pin_memory=False",
                                  "makes copy_to_cpu() wait until the bytes are there",
                                  "make the group with pin_memory=True"};

// The base of staging.StagingGroup: buffers in one pair of arenas, staged together. The Python
// class makes the arenas and the members.
class Group {
 public:
  using Part = GroupCopies::Part;
  using Parts = c10::SmallVector<Part, 64>;

  Group(py::object cpu, py::object gpu, bool pinned, bool keep_tails, std::string name)
      : cpu_(unpack_tensor(cpu, "cpu")),
        gpu_(unpack_tensor(gpu, "gpu")),
        pinned_(pinned),
        name_(std::move(name)),
        streams_(gpu_) {
    if (!gpu_.is_cuda()) return;
    device_ = gpu_.device().index();
    copies_ = std::make_shared<GroupCopies>(
        DeviceContext::of(device_),
        GroupCopies::Arenas{.host = static_cast<std::byte*>(cpu_.mutable_data_ptr()),
                            .host_is_pinned = pinned,
                            .device = static_cast<std::byte*>(gpu_.mutable_data_ptr()),
                            .nbytes = gpu_.nbytes(),
                            .host_owner = std::make_shared<c10::Storage>(cpu_.storage()),
                            .device_owner = std::make_shared<c10::Storage>(gpu_.storage())},
        keep_tails);
    copies_->filled_on(streams_.last());
  }
  Group(const Group&) = delete;  // one order of copies
  Group& operator=(const Group&) = delete;

  std::shared_ptr<CopyOrder> order() const {
    return copies_ ? std::shared_ptr<CopyOrder>(copies_, &copies_->order()) : nullptr;
  }

  void add_member(py::str name, py::object buffer, std::size_t offset) {
    const auto index = static_cast<std::uint32_t>(members_.size());
    BufferParts parts = parts_of_buffer(buffer);
    if (parts.cpu->dim() == 0) parts.rows = -1;  // no number of rows will do
    if (copies_) {
      copies_->add_member(offset, parts.nbytes);
      copies_->attach(index, parts.copies);
    }
    lookup_[name] = py::int_(index);
    lookup_[buffer] = py::int_(index);
    members_.push_back({parts, 0, std::move(name), std::move(buffer)});
  }

  void copy_to_gpu(py::handle prefixes, py::handle stream) {
    const Parts parts = parts_of(prefixes);
    const NvtxRange range(name_, "copy_to_gpu");
    if (copies_) {
      const StreamRef on = streams_.of(stream);
      enqueue(parts, [&] { return copies_->upload(on, {parts.data(), parts.size()}); });
    } else if (gpu_.is_cpu()) {
      for (const Part& part : parts) {
        const BufferParts& buffer = members_[part.member].parts;
        std::memcpy(buffer.device, buffer.host, part.nbytes);
      }
    }
    for (const Part& part : parts) {
      members_[part.member].parts.gpu->unsafeGetTensorImpl()->bump_version();
    }
  }

  void copy_to_cpu(py::handle prefixes, py::handle stream) {
    const Parts parts = parts_of(prefixes);
    const NvtxRange range(name_, "copy_to_cpu");
    if (copies_) {
      if (!pinned_) report_slow_path(kPageableArena);
      const StreamRef on = streams_.of(stream);
      enqueue(parts, [&] {
        copies_->download(on, {parts.data(), parts.size()});
        return true;
      });
    } else if (gpu_.is_cpu()) {
      for (const Part& part : parts) {
        const BufferParts& buffer = members_[part.member].parts;
        std::memcpy(buffer.host, buffer.device, part.nbytes);
      }
    }
    for (const Part& part : parts) {
      members_[part.member].parts.cpu->unsafeGetTensorImpl()->bump_version();
    }
  }

  void refill(py::handle prefixes, py::handle stream) {
    const Parts parts = parts_of(prefixes);
    if (!copies_) {
      throw StateError("refill() is for copies in a CUDA graph; this group is on " +
                       gpu_.device().str());
    }
    const NvtxRange range(name_, "refill");
    const StreamRef on = streams_.of(stream);
    const py::gil_scoped_release no_gil;
    for (const Part& part : parts) {
      members_[part.member].parts.copies->refill(on, part.nbytes);
    }
  }

  py::tuple stats() const {
    const GroupCounts counts = copies_ ? copies_->counts() : GroupCounts{};
    return py::make_tuple(counts.to_gpu, counts.to_cpu, counts.to_gpu_nbytes, counts.to_cpu_nbytes,
                          counts.operations, counts.waits, counts.waited_us);
  }

 private:
  struct Member {
    BufferParts parts;
    std::uint64_t named_in;  // the number of the call that named it last
    py::str name;
    py::object object;
  };
  // A key that stood at this place of the last call's dict, and the member that it named.
  struct Hint {
    py::object key;
    std::uint32_t member;
  };

  // The named prefixes, in the order of the arena. Checks all of them.
  Parts parts_of(py::handle prefixes) {
    Parts parts;
    if (prefixes.is_none()) {
      for (std::uint32_t i = 0; i < members_.size(); ++i) {
        parts.push_back({i, members_[i].parts.nbytes});
      }
      return parts;
    }
    if (!PyDict_CheckExact(prefixes.ptr())) return parts_of(dict_of(prefixes));
    const std::uint64_t call = ++call_;
    bool sorted = true;
    std::uint32_t last = 0;
    Py_ssize_t position = 0;
    PyObject* key = nullptr;
    PyObject* value = nullptr;
    for (std::size_t i = 0; PyDict_Next(prefixes.ptr(), &position, &key, &value) != 0; ++i) {
      if (!PyLong_CheckExact(value) && value != Py_None) {
        // Finding out what it is may run the caller's code, which may change the dict.
        return parts_of(with_integers(prefixes));
      }
      std::uint32_t member = 0;
      py::object held;  // what finding a member may run could change the dict
      if (i < hints_.size() && hints_[i].key.ptr() == key) [[likely]] {
        member = hints_[i].member;
      } else {
        held = py::reinterpret_borrow<py::object>(value);
        member = find(key, i);
      }
      Member& named = members_[member];
      if (named.named_in == call) [[unlikely]] {
        throw InvalidArgument("prefixes names the member '" + std::string(named.name) + "' twice");
      }
      named.named_in = call;
      parts.push_back({member, prefix_nbytes(named, value)});
      sorted = sorted && member >= last;
      last = member;
    }
    if (!sorted) {
      std::sort(parts.begin(), parts.end(),
                [](const Part& a, const Part& b) { return a.member < b.member; });
    }
    return parts;
  }

  static py::dict dict_of(py::handle mapping) {
    py::dict dict;
    if (PyDict_Update(dict.ptr(), mapping.ptr()) != 0) {
      if (PyErr_ExceptionMatches(PyExc_AttributeError) == 0) throw py::error_already_set();
      PyErr_Clear();
      throw py::type_error(std::string("prefixes must be a dict of members and numbers of rows, "
                                       "got ") +
                           Py_TYPE(mapping.ptr())->tp_name);
    }
    return dict;
  }

  // A copy whose values are ints (or None): NumPy's, for instance, are turned into some.
  static py::dict with_integers(py::handle prefixes) {
    py::dict result;
    for (const auto& [key, value] : dict_of(prefixes)) {
      if (value.is_none()) {
        result[key] = value;
        continue;
      }
      auto number = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
      if (!number) {
        PyErr_Clear();
        throw py::type_error("prefixes[" + py::repr(key).cast<std::string>() +
                             "] must be an int or None, got " + Py_TYPE(value.ptr())->tp_name);
      }
      // A subclass of int is not asked again.
      result[key] = py::reinterpret_steal<py::object>(PyNumber_Long(number.ptr()));
    }
    return result;
  }

  std::uint32_t find(PyObject* key, std::size_t place) {
    const auto held = py::reinterpret_borrow<py::object>(key);
    PyObject* index = PyDict_GetItemWithError(lookup_.ptr(), key);
    if (index == nullptr) {
      if (PyErr_Occurred() != nullptr) throw py::error_already_set();
      std::string names;
      for (const Member& member : members_) {
        if (!names.empty()) names += ", ";
        names += std::string(member.name);
      }
      throw InvalidArgument("prefixes names " + py::repr(held).cast<std::string>() +
                            ", which is no member of this group (its members: " + names + ")");
    }
    const auto member = py::handle(index).cast<std::uint32_t>();
    if (place == hints_.size()) {
      hints_.push_back({held, member});
    } else if (place < hints_.size()) {
      hints_[place] = {held, member};
    }
    return member;
  }

  static std::size_t prefix_nbytes(const Member& member, PyObject* value) {
    const BufferParts& parts = member.parts;
    if (value == Py_None) return parts.nbytes;
    const Py_ssize_t rows = PyLong_AsSsize_t(value);
    if (rows < 0 || rows > parts.rows) [[unlikely]] {
      PyErr_Clear();
      const std::string where = "prefixes['" + std::string(member.name) + "']";
      STAGING_EXPECTS(parts.rows >= 0, where, " must be None: this member has no dimensions");
      throw InvalidArgument(where + " must be in 0.." + std::to_string(parts.rows) +
                            " (the member's rows), got " + py::repr(value).cast<std::string>());
    }
    return static_cast<std::size_t>(rows) * parts.row_nbytes;
  }

  // Runs `operation`, which says whether the device uses the host arrays now, without the GIL.
  template <typename Operation>
  void enqueue(const Parts& parts, Operation operation) {
    bool uses_host = false;
    try {
      const py::gil_scoped_release no_gil;
      uses_host = operation();
    } catch (...) {
      close_guards(parts);  // something may have been enqueued; the next read finds out
      throw;
    }
    if (uses_host) close_guards(parts);
  }

  void close_guards(const Parts& parts) noexcept {
    for (const Part& part : parts) {
      if (part.nbytes > 0) members_[part.member].parts.guard->close();
    }
  }

  const at::TensorBase cpu_;
  const at::TensorBase gpu_;
  const bool pinned_;
  const std::string name_;
  TensorStreams streams_;
  int device_ = -1;
  std::shared_ptr<GroupCopies> copies_;  // null: no device, copies are immediate
  std::vector<Member> members_;
  py::dict lookup_;  // name, and member -> its index
  std::vector<Hint> hints_;
  std::uint64_t call_ = 0;
};

constexpr const char* kCopyToGpuDoc =
    R"(Copy the members' host arrays, or their first rows, to the device.

One transfer or launch and one event record, however many members there are. The host
arrays may be overwritten as soon as this returns, through any view of them: the bytes
have been taken. The copy runs on ``stream``, in order with the group's other copies and
with the members' own.

Where the stream captures a CUDA graph, the copies become part of the graph and read
pinned memory of their own at each replay; see ``refill``.

Parameters
----------
prefixes : dict, optional
    Member, or its name -> how many rows of its dimension 0; None for all of them. Without
    it all members are copied whole. A dict in the order of the members is the quickest.
stream : torch.cuda.Stream, optional
    Instead of the current stream of the group's device.

Raises
------
TypeError, ValueError
    A key is no member, or is named twice; a number of rows is no int, negative or larger
    than the member. Nothing was copied then.
RuntimeError
    The process was forked after CUDA was initialised.

Notes
-----
Waits for nothing, except for the oldest copy in flight where the stream has more in
flight than ``staging.set_upload_limit`` allows.

Which way is the quickest follows the machine's cost table: a large member among small
ones may get a transfer of its own besides.
)";

constexpr const char* kCopyToCpuDoc =
    R"(Copy the members' device arrays, or their first rows, to the host.

One transfer, batch or launch, and one event record. The next read of ``np`` or ``cpu`` of
a named member waits for it; the others' do not.

Parameters
----------
prefixes : dict, optional
    As for ``copy_to_gpu``.
stream : torch.cuda.Stream, optional
    Instead of the current stream of the group's device.

Raises
------
TypeError, ValueError
    As ``copy_to_gpu``.
RuntimeError
    The stream captures a CUDA graph, or the process was forked after CUDA was
    initialised.

Notes
-----
Waits for nothing, except where the host arrays are not pinned: then it returns when the
bytes are there.
)";

}  // namespace

std::shared_ptr<CopyOrder> order_of_group(py::handle group) {
  return group.is_none() ? nullptr : group.cast<Group&>().order();
}

void bind_group(py::module_& m) {
  py::class_<Group>(m, "Group")
      .def(py::init<py::object, py::object, bool, bool, std::string>(), py::arg("cpu"),
           py::arg("gpu"), py::arg("pinned"), py::arg("keep_tails"), py::arg("name"))
      .def("_add_member", &Group::add_member, py::arg("name"), py::arg("buffer"), py::arg("offset"))
      .def("copy_to_gpu", &Group::copy_to_gpu, py::arg("prefixes") = py::none(), py::kw_only(),
           py::arg("stream") = py::none(), kCopyToGpuDoc)
      .def("copy_to_cpu", &Group::copy_to_cpu, py::arg("prefixes") = py::none(), py::kw_only(),
           py::arg("stream") = py::none(), kCopyToCpuDoc)
      .def("_refill", &Group::refill, py::arg("prefixes"), py::arg("stream"))
      .def("_stats", &Group::stats);
}

}  // namespace staging::bindings
