#include "kernels/registry.h"

#include "kernels/blake3_chunks.h"
#include "kernels/blake3_tree.h"
#include "kernels/row_writes.h"
#include "kernels/segmented_copy.h"
#include "kernels/strided_copy.h"

namespace staging::kernels {

const Kernel* find_kernel(std::string_view name) noexcept {
  for (const Kernel* kernel :
       {&blake3_chunks(), &blake3_tree(), &row_writes(), &segmented_copy_small(),
        &segmented_copy_medium(), &segmented_copy_large(), &strided_copy()}) {
    if (name == kernel->name) return kernel;
  }
  return nullptr;
}

}  // namespace staging::kernels
