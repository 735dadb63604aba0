#include "kernels/blake3_chunks.cuh"

STAGING_CUDA_STUB(blake3_chunks)
