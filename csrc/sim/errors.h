// Names and texts of CUDA's error codes.
//
// Owner: constants. Thread-safety: immutable.
#pragma once

#include <cuda_runtime_api.h>

namespace staging::sim {

// "cudaErrorInvalidValue", or null for a number that is no code.
const char* error_name(cudaError_t error) noexcept;
// "invalid argument". Codes without a text of their own here are described by their name.
const char* error_text(cudaError_t error) noexcept;

}  // namespace staging::sim
