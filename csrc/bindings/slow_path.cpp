#include "bindings/slow_path.h"

#include <cstdlib>
#include <map>
#include <set>
#include <string_view>
#include <tuple>

#include "bindings/bindings.h"
#include "support/nvtx.h"
#include "support/slow_path.h"

namespace staging::bindings {

namespace py = pybind11;

namespace {

PyObject* hint_category = nullptr;
PyObject* slow_path_category = nullptr;
std::string package_folder;  // with the trailing slash

// A line of the user's program, and how many Python frames it is away.
struct Site {
  PyCodeObject* code = nullptr;  // as an identity only
  int line = 0;
  int level = 1;
};

Site find_site() {
  Site site;
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  for (int level = 1; frame != nullptr; ++level) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    const char* file = PyUnicode_AsUTF8(code->co_filename);
    if (file == nullptr) PyErr_Clear();
    const bool ours = file != nullptr && std::string_view(file).starts_with(package_folder);
    site = {code, PyFrame_GetLineNumber(frame), level};
    Py_DECREF(code);
    PyFrameObject* back = ours ? PyFrame_GetBack(frame) : nullptr;
    Py_DECREF(frame);
    frame = back;
  }
  return site;
}

void warn(py::handle category, const std::string& message, int level) {
  if (PyErr_WarnEx(category.ptr(), message.c_str(), level) != 0) throw py::error_already_set();
}

void warn_once_per_site(const SlowPath& path) {
  const py::gil_scoped_acquire gil;
  // A code object that died may give its address to another: that costs a warning at most.
  static auto* const seen = new std::set<std::tuple<PyCodeObject*, int, const SlowPath*>>();
  const Site site = find_site();
  // A program that compiles code all the time has new lines all the time.
  constexpr std::size_t kMostSites = 10'000;
  if (seen->size() >= kMostSites) seen->clear();
  if (!seen->emplace(site.code, site.line, &path).second) return;
  try {
    warn(slow_path_category, describe(path), site.level);
  } catch (...) {
    seen->erase({site.code, site.line, &path});  // an error is raised every time
    throw;
  }
}

bool environment_flag(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' && std::string_view(value) != "0";
}

}  // namespace

py::handle staging_hint() {
  return hint_category;
}

void warn_user(py::handle category, const std::string& message) {
  warn(category, message, find_site().level);
}

void bind_slow_path(py::module_& m) {
  hint_category = PyErr_NewExceptionWithDoc("staging.StagingHint",
                                            "A cheaper way to do what was just done; said once.",
                                            PyExc_UserWarning, nullptr);
  m.attr("StagingHint") = py::reinterpret_borrow<py::object>(hint_category);
  slow_path_category = PyErr_NewExceptionWithDoc(
      "staging.SlowPathWarning",
      "A call is slower, or less asynchronous, than it looks. Warned about once for each line;\n"
      "in strict mode it is staging.StrictError instead.",
      PyExc_UserWarning, nullptr);
  m.attr("SlowPathWarning") = py::reinterpret_borrow<py::object>(slow_path_category);
  slow_path_hook.store(&warn_once_per_site);
  strict_mode.store(environment_flag("STAGING_STRICT"));
  nvtx_enabled.store(nvtx_available() && environment_flag("STAGING_NVTX"));

  m.def("set_package_folder", [](std::string folder) { package_folder = std::move(folder); });
  m.def("strict", [] { return strict_mode.load(); });
  m.def("set_strict", [](bool enabled) { strict_mode.store(enabled); });
  m.def("report_slow_path", [](const std::string& argument, const std::string& problem,
                               const std::string& remedy) {
    // Kept for ever: its address is its identity, and there are few.
    static auto* const known = new std::set<std::tuple<std::string, std::string, std::string>>();
    static auto* const paths = new std::map<const void*, SlowPath>();
    const auto& text = *known->emplace(argument, problem, remedy).first;
    SlowPath& path = (*paths)[&text];
    path = {std::get<0>(text).c_str(), std::get<1>(text).c_str(), std::get<2>(text).c_str()};
    report_slow_path(path);
  });
  m.def("nvtx_available", &nvtx_available);
  m.def("nvtx", [] { return nvtx_enabled.load(); });
  m.def("set_nvtx", [](bool enabled) { nvtx_enabled.store(enabled); });
}

}  // namespace staging::bindings
