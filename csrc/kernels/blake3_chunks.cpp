#include "kernels/blake3_chunks.h"

#include "kernels/blake3_chunks.cuh"

namespace staging::kernels {

STAGING_DEFINE_KERNEL(blake3_chunks, /*barriers=*/true)

void launch_blake3_chunks(Runtime& runtime, int device, StreamHandle stream, unsigned blocks,
                          Blake3ChunksParams params) {
  void* args[] = {&params};
  runtime.launch(device, blake3_chunks(), {blocks, 1, 1}, {kBlake3ChunksPerBlock, 1, 1}, 0, args,
                 stream);
}

}  // namespace staging::kernels
