// The parts of the extension module: each adds its names to it.
#pragma once

#include <pybind11/pybind11.h>

namespace staging::bindings {

void bind_errors(pybind11::module_& m);
void bind_buffer(pybind11::module_& m);
void bind_copy(pybind11::module_& m);
void bind_cost(pybind11::module_& m);
void bind_data(pybind11::module_& m);
void bind_fetch(pybind11::module_& m);
void bind_group(pybind11::module_& m);
void bind_framing(pybind11::module_& m);
void bind_hash(pybind11::module_& m);
void bind_log(pybind11::module_& m);
void bind_memory(pybind11::module_& m);
void bind_rows(pybind11::module_& m);
void bind_runtime(pybind11::module_& m);
void bind_slow_path(pybind11::module_& m);
void bind_uva(pybind11::module_& m);

}  // namespace staging::bindings
