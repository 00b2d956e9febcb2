/* SPDX-License-Identifier: MIT */
/* Operations on rows of logits: softmax in place, and the greatest logit with its share. */
#include "cpu/kernels/vector_ops.h"
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
    uint32_t index; /* NONE: all NaN so far */
} candidate;

/* The greater of two; of equals the first. */
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

/* The best value of a row. Thread t looks at values t, t + the block's threads, and so on. NaNs
 * never win. All threads of the block call it, and all get the result. */
__device__ static inline candidate best_of_row(const float *row, uint32_t n, candidate *winners)
{
    candidate best = {-MOE_INFINITY, NONE};
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
        candidate own = {row[i], i};
        best = better(best, own);
    }
    best = best_of_warp(best);
    if (threadIdx.x % MOE_WARP == 0)
        winners[threadIdx.x / MOE_WARP] = best;
    __syncthreads();
    best = winners[threadIdx.x % MOE_WARP % (blockDim.x / MOE_WARP)];
    return best_of_warp(best);
}

/* Block: a row. Thread: a lane of the sum. */
__global__ __launch_bounds__(MOE_EXP_SUM_LANES) void moe_greatest_rows(const float *x, uint32_t n,
                                                                       moe_greatest *out)
{
    __shared__ candidate winners[MOE_WARP];
    __shared__ float lanes[MOE_EXP_SUM_LANES];
    const float *row = x + (size_t)blockIdx.x * n;
    candidate best = best_of_row(row, n, winners);
    float sum = 0.0f;
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < n; i += MOE_EXP_SUM_LANES)
        sum += moe_device_exp(row[i] - best.value);
    lanes[threadIdx.x] = sum;
    for (uint32_t half = MOE_EXP_SUM_LANES / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half)
            lanes[threadIdx.x] += lanes[threadIdx.x + half];
    }
    if (threadIdx.x == 0) {
        out[blockIdx.x].index = best.value > -MOE_INFINITY ? best.index : 0;
        out[blockIdx.x].share = 1.0f / lanes[0];
    }
}

void moe_cuda_softmax(moe_cuda_stream stream, float *x, uint32_t n_rows, uint32_t n)
{
    if (n_rows > 0)
        MOE_LAUNCH(moe_softmax_rows, n_rows, THREADS, 0, stream, x, n);
}

void moe_cuda_greatest(moe_cuda_stream stream, const float *x, uint32_t n_rows, uint32_t n,
                       moe_greatest *out)
{
    if (n_rows > 0)
        MOE_LAUNCH(moe_greatest_rows, n_rows, MOE_EXP_SUM_LANES, 0, stream, x, n, out);
}
