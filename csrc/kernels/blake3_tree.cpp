#include "kernels/blake3_tree.h"

#include "kernels/blake3_tree.cuh"

namespace staging::kernels {

STAGING_DEFINE_KERNEL(blake3_tree, /*barriers=*/true)

void launch_blake3_tree(Runtime& runtime, int device, StreamHandle stream, unsigned blocks,
                        Blake3TreeParams params) {
  void* args[] = {&params};
  runtime.launch(device, blake3_tree(), {blocks, 1, 1}, {kBlake3TreeThreads, 1, 1}, 0, args,
                 stream);
}

}  // namespace staging::kernels
