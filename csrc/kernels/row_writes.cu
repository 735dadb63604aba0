#include "kernels/row_writes.cuh"

STAGING_CUDA_STUB(row_writes)
