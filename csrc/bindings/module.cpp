#include "bindings/bindings.h"

PYBIND11_MODULE(_C, m, pybind11::mod_gil_used()) {
  m.doc() = "The C++ part of staging. Its names are used through the package, not from here.";
  using namespace staging::bindings;
  bind_errors(m);
  bind_log(m);
  bind_runtime(m);
  bind_slow_path(m);
  bind_fetch(m);
  bind_memory(m);
  bind_buffer(m);
  bind_group(m);
  bind_rows(m);
  bind_uva(m);
  bind_copy(m);
  bind_cost(m);
  bind_data(m);
  bind_framing(m);
  bind_hash(m);
}
