// What a group's binding needs of a buffer's.
#pragma once

#include <ATen/core/TensorBase.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>

#include "bindings/host_guard.h"
#include "transfer/buffer_copies.h"

namespace staging::bindings {

// All of it belongs to the buffer, and lives as long as its Python object.
struct BufferParts {
  const at::TensorBase* cpu;
  const at::TensorBase* gpu;
  std::byte* host;    // where the arrays were made: their tensors may be given other memory
  std::byte* device;  // of a CPU device: in host memory, of a meta device null
  std::int64_t rows;  // of dimension 0
  std::size_t nbytes;
  std::size_t row_nbytes;
  BufferCopies* copies;  // null: no device, copies are immediate
  HostGuard* guard;
};

// Of a _C.Buffer; pybind11::cast_error where it is none.
BufferParts parts_of_buffer(pybind11::handle buffer);

}  // namespace staging::bindings
