#include "kernels/blake3_tree.cuh"

STAGING_CUDA_STUB(blake3_tree)
