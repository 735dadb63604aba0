// PyTorch's fill: what torch.zeros, full and fill_ launch on contiguous tensors.
//
// Purpose: a model of at::native::vectorized_elementwise_kernel<…, FillFunctor<T>, …> (and
//   of unrolled_elementwise_kernel, which 16-byte elements take) with arguments (int n,
//   FillFunctor{T value}, array of one pointer), for every T.
// Owner: values. Thread-safety: stateless.
#pragma once

#include <memory>
#include <string_view>

#include "sim/kernels.h"

namespace staging::sim {

// Null where `name` (demangled) is not such a kernel.
std::unique_ptr<KernelModel> make_fill_kernel(std::string_view name);

}  // namespace staging::sim
