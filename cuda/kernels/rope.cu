/* SPDX-License-Identifier: MIT */
/* Rotary embedding in place, by rope_interleaved and rope_halves of vector_ops.h, one thread for
 * each pair. Sines and cosines come in tables, so that host and device use the same angles. */
#include "cuda/kernels/vector_launch.h"
#include "cuda/kernels/vector_math.cuh"

#define THREADS 256u

typedef struct rope_args {
    float *x;
    const float *cosines; /* [n_rows][n_pairs] */
    const float *sines;
    size_t row_stride;
    size_t head_stride;
    uint32_t n_head;
    uint32_t n_pairs;
    bool interleaved;
} rope_args;

/* Block (row, part of its pairs). */
__global__ __launch_bounds__(THREADS) void moe_rope_rows(rope_args args)
{
    uint32_t i = blockIdx.y * THREADS + threadIdx.x;
    uint32_t row = blockIdx.x;
    if (i >= args.n_head * args.n_pairs)
        return;
    uint32_t pair = i % args.n_pairs;
    float *head = args.x + row * args.row_stride + i / args.n_pairs * args.head_stride;
    float *x0 = head + (args.interleaved ? 2 * pair : pair);
    float *x1 = x0 + (args.interleaved ? 1 : args.n_pairs);
    float c = args.cosines[(size_t)row * args.n_pairs + pair];
    float s = args.sines[(size_t)row * args.n_pairs + pair];
    float a = *x0;
    float b = *x1;
    *x0 = fmaf(a, c, -(b * s));
    *x1 = fmaf(a, s, b * c);
}

void moe_cuda_rope(moe_cuda_stream stream, const moe_rope *rope, uint32_t n_rows)
{
    rope_args args = {rope->x,           rope->cos,    rope->sin,       rope->row_stride,
                      rope->head_stride, rope->n_head, rope->n_rot / 2, rope->interleaved};
    uint32_t n = args.n_head * args.n_pairs;
    if (n_rows > 0 && n > 0)
        MOE_LAUNCH(moe_rope_rows, dim3(n_rows, (n + THREADS - 1) / THREADS), THREADS, 0, stream,
                   args);
}
