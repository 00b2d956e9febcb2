/* SPDX-License-Identifier: MIT */
/* What is done to rows of logits: softmax in place, and the index of the greatest. */
#include "cuda/kernels/vector_launch.h"
#include "cuda/kernels/vector_math.cuh"

#define THREADS 1024u
#define NONE    0xffffffffu

/* Block: a row. */
__global__ __launch_bounds__(THREADS) void moe_softmax_rows(float *x, uint32_t n)
{
    __shared__ float scratch[MOE_WARP + 1];
    moe_block_softmax(x + (size_t)blockIdx.x * n, n, scratch);
}

typedef struct candidate {
    float value;
    uint32_t index; /* NONE: no number seen yet */
} candidate;

/* The greater; of equals the one that stands first. */
__device__ static inline candidate better(candidate a, candidate b)
{
    if (b.value > a.value || (b.value == a.value && b.index < a.index))
        return b;
    return a;
}

__device__ static inline candidate best_of_warp(candidate best)
{
    for (int half = 16; half > 0; half /= 2) {
        candidate other;
        other.value = __shfl_xor_sync(MOE_ALL_WARP, best.value, half);
        other.index = __shfl_xor_sync(MOE_ALL_WARP, best.index, half);
        best = better(best, other);
    }
    return best;
}

/* Block: a row. NaNs compare with nothing and so never win; 0 where there is nothing else. */
__global__ __launch_bounds__(THREADS) void moe_argmax_rows(const float *x, uint32_t n,
                                                           uint32_t *out)
{
    __shared__ candidate winners[MOE_WARP];
    const float *row = x + (size_t)blockIdx.x * n;
    candidate best = {-MOE_INFINITY, NONE};
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
        candidate own = {row[i], i};
        best = better(best, own);
    }
    best = best_of_warp(best);
    if (threadIdx.x % MOE_WARP == 0)
        winners[threadIdx.x / MOE_WARP] = best;
    __syncthreads();
    if (threadIdx.x < MOE_WARP) {
        best = best_of_warp(winners[threadIdx.x]);
        if (threadIdx.x == 0)
            out[blockIdx.x] = best.index == NONE ? 0 : best.index;
    }
}

void moe_cuda_softmax(moe_cuda_stream stream, float *x, uint32_t n_rows, uint32_t n)
{
    if (n_rows > 0)
        MOE_LAUNCH(moe_softmax_rows, n_rows, THREADS, 0, stream, x, n);
}

void moe_cuda_argmax(moe_cuda_stream stream, const float *x, uint32_t n_rows, uint32_t n,
                     uint32_t *out)
{
    if (n_rows > 0)
        MOE_LAUNCH(moe_argmax_rows, n_rows, THREADS, 0, stream, x, n, out);
}
