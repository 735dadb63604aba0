// torch.ops.staging: the operators that compiled functions can call.
#include <torch/library.h>

#include "support/error.h"
#include "torch_ops/copy_slice.h"

namespace staging::torch_ops {

namespace {

// Operators report errors as PyTorch's, which their callers and the compiler expect.
template <typename Function>
void with_torch_errors(Function function) {
  try {
    function();
  } catch (const TypeMismatch& error) {
    TORCH_CHECK_TYPE(false, error.what());
  } catch (const InvalidArgument& error) {
    TORCH_CHECK_VALUE(false, error.what());
  } catch (const Error& error) {
    TORCH_CHECK(false, error.what());
  }
}

void copy_slice_op(const at::Tensor& from_tensor, const at::Tensor& to_tensor, std::int64_t length,
                   bool snapshot) {
  with_torch_errors([&] {
    copy_slice(from_tensor, to_tensor, length, {.snapshot = snapshot, .stream = std::nullopt});
  });
}

void copy_slice_meta(const at::Tensor& from_tensor, const at::Tensor& to_tensor, c10::SymInt length,
                     bool /*snapshot*/) {
  TORCH_CHECK_TYPE(from_tensor.dtype() == to_tensor.dtype(),
                   "from_tensor and to_tensor must have one dtype, got ", from_tensor.dtype(),
                   " and ", to_tensor.dtype());
  TORCH_CHECK_VALUE(from_tensor.dim() > 0 && from_tensor.dim() == to_tensor.dim(),
                    "from_tensor and to_tensor must have the same number of dimensions, at least "
                    "one, got ",
                    from_tensor.dim(), " and ", to_tensor.dim());
  TORCH_SYM_CHECK(length.sym_ge(0), "length must be >= 0, got ", length);
  TORCH_SYM_CHECK(length.sym_le(from_tensor.sym_size(0)),
                  "length must be <= ", from_tensor.sym_size(0), ", got ", length);
  TORCH_SYM_CHECK(length.sym_le(to_tensor.sym_size(0)), "length must be <= ", to_tensor.sym_size(0),
                  ", got ", length);
}

}  // namespace

TORCH_LIBRARY(staging, m) {
  m.def(
      "copy_slice_(Tensor from_tensor, Tensor(a!) to_tensor, SymInt length, *, "
      "bool snapshot=False) -> ()");
}

TORCH_LIBRARY_IMPL(staging, CPU, m) {
  m.impl("copy_slice_", &copy_slice_op);
}
TORCH_LIBRARY_IMPL(staging, CUDA, m) {
  m.impl("copy_slice_", &copy_slice_op);
}
TORCH_LIBRARY_IMPL(staging, Meta, m) {
  m.impl("copy_slice_", &copy_slice_meta);
}

}  // namespace staging::torch_ops
