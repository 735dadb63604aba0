#include "kernels/strided_copy.cuh"

STAGING_CUDA_STUB(strided_copy)
