#include "runtime/cuda_runtime.h"

namespace staging {

std::unique_ptr<Runtime> make_cuda_runtime() {
  return nullptr;
}

}  // namespace staging
