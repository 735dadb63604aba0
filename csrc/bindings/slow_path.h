// Warnings about slow paths and hints, as Python's.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

namespace staging::bindings {

// The category staging.StagingHint.
pybind11::handle staging_hint();

// Warns at the caller's line: the innermost frame that is not of this package. Needs the GIL;
// throws error_already_set where the warning was turned into an error.
void warn_user(pybind11::handle category, const std::string& message);

}  // namespace staging::bindings
