// Every kernel of this package by name, for those who run them without knowing their types.
#pragma once

#include <string_view>

#include "runtime/runtime.h"

namespace staging::kernels {

// The kernel whose function is called `name` ("strided_copy_kernel"), or null.
const Kernel* find_kernel(std::string_view name) noexcept;

}  // namespace staging::kernels
