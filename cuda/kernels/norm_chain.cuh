/* SPDX-License-Identifier: MIT */
/* The sum of squares of a long row, by rms_norm of vector_ops.h. Sixteen threads have a chain each:
 * every sixteenth element in order, one fmaf after another. The order must not change. A block
 * brings the row into shared memory in pieces of NORM_PIECE floats. */
#ifndef MOE_CUDA_NORM_CHAIN_CUH
#define MOE_CUDA_NORM_CHAIN_CUH

#include "cuda/kernels/vector_math.cuh"

#define NORM_PIECE 4096u /* floats; a multiple of MOE_LANES and of a block's threads */

/* Continues the thread's chain over a piece. The block's first warp calls it, after a barrier. */
__device__ static inline float moe_norm_chain(const float *piece, uint32_t count, float chain)
{
#pragma unroll 8
    for (uint32_t i = threadIdx.x % MOE_LANES; i < count; i += MOE_LANES)
        chain = fmaf(piece[i], piece[i], chain);
    return chain;
}

__device__ static inline float moe_norm_inverse(float sum, uint32_t n, float eps)
{
    return 1.0f / sqrtf(sum / (float)n + eps);
}

#endif
