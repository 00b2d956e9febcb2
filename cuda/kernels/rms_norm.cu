/* SPDX-License-Identifier: MIT */
/* Root-mean-square norms of rows, by rms_norm of vector_ops.h.
 *
 * Sixteen threads add a row's squares. Each takes every sixteenth element in order, one fmaf after
 * another: a chain, whose order must not change. The threads of a short row (a head's norm) read
 * memory themselves. A long row is cut into pieces of NORM_PIECE floats; the whole block loads a
 * piece into shared memory, with all loads at once (norm_chain.cuh).
 */
#include "cuda/kernels/norm_chain.cuh"
#include "cuda/kernels/vector_launch.h"

#define THREADS 256u
/* Rows up to this length count as short: each of their chains has at most 32 steps, which take no
 * longer than the block would take to load a piece and add it. */
#define SHORT_ROW    512u
#define ROWS_A_BLOCK (THREADS / MOE_LANES)

typedef struct norm_args {
    const float *x;
    const float *weight;
    float *y;
    size_t stride;
    uint32_t n_rows;
    uint32_t n;
    float eps;
} norm_args;

__global__ __launch_bounds__(THREADS) void moe_rms_norm_short(norm_args args)
{
    uint32_t lane = threadIdx.x % MOE_LANES;
    uint32_t row = blockIdx.x * ROWS_A_BLOCK + threadIdx.x / MOE_LANES;
    /* Threads without a row run too, because the other threads of their warp need them. */
    uint32_t n = row < args.n_rows ? args.n : 0;
    const float *x = args.x + row * args.stride;
    float *y = args.y + row * args.stride;
    float sum = 0.0f;
#pragma unroll 8
    for (uint32_t i = lane; i < n; i += MOE_LANES)
        sum = fmaf(x[i], x[i], sum);
    float inverse = moe_norm_inverse(moe_lanes_sum(sum), args.n, args.eps);
#pragma unroll 8
    for (uint32_t i = lane; i < n; i += MOE_LANES)
        y[i] = x[i] * inverse * args.weight[i];
}

__global__ __launch_bounds__(THREADS) void moe_rms_norm_long(norm_args args)
{
    __shared__ float piece[NORM_PIECE];
    __shared__ float inverse;
    const float *x = args.x + blockIdx.x * args.stride;
    float *y = args.y + blockIdx.x * args.stride;
    float sum = 0.0f;
    for (uint32_t first = 0; first < args.n; first += NORM_PIECE) {
        uint32_t count = args.n - first < NORM_PIECE ? args.n - first : NORM_PIECE;
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < count; i += THREADS)
            piece[i] = x[first + i];
        __syncthreads();
        if (threadIdx.x < MOE_WARP)
            sum = moe_norm_chain(piece, count, sum);
    }
    if (threadIdx.x < MOE_WARP) {
        sum = moe_lanes_sum(sum);
        if (threadIdx.x == 0)
            inverse = moe_norm_inverse(sum, args.n, args.eps);
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < args.n; i += THREADS)
        y[i] = x[i] * inverse * args.weight[i];
}

void moe_cuda_rms_norm(moe_cuda_stream stream, const float *x, const float *weight, float *y,
                       uint32_t n_rows, uint32_t n, size_t x_stride, float eps)
{
    norm_args args = {x, weight, y, x_stride, n_rows, n, eps};
    if (n_rows == 0)
        return;
    if (n <= SHORT_ROW)
        MOE_LAUNCH(moe_rms_norm_short, (n_rows + ROWS_A_BLOCK - 1) / ROWS_A_BLOCK, THREADS, 0,
                   stream, args);
    else
        MOE_LAUNCH(moe_rms_norm_long, n_rows, THREADS, 0, stream, args);
}
