/* SPDX-License-Identifier: MIT */
/* Addition, root-mean-square norm and quantisation of rows as one kernel, a block for each row. The
 * norm is that of rms_norm.cu: sixteen chains of fmaf that nothing may shorten. */
#include "cuda/kernels/norm_launch.h"
#include "cuda/kernels/quantize_block.cuh"

#define THREADS 256u
#define PIECE   4096u /* a multiple of MOE_LANES and of THREADS */

__global__ __launch_bounds__(THREADS) void moe_norm_quantize(moe_cuda_fused_norm job)
{
    __shared__ float piece[PIECE];
    __shared__ float inverse;
    const size_t row = (size_t)blockIdx.x * job.n;
    const float *x = job.x + row;
    float chain = 0.0f;
    for (uint32_t first = 0; first < job.n; first += PIECE) {
        uint32_t count = job.n - first < PIECE ? job.n - first : PIECE;
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < count; i += THREADS) {
            float value = x[first + i];
            if (job.added != NULL) {
                value = value + job.added[row + first + i];
                job.sum[row + first + i] = value;
            }
            piece[i] = value;
        }
        __syncthreads();
        if (threadIdx.x < MOE_WARP) {
#pragma unroll 8
            for (uint32_t i = threadIdx.x % MOE_LANES; i < count; i += MOE_LANES)
                chain = fmaf(piece[i], piece[i], chain);
        }
    }
    if (threadIdx.x < MOE_WARP) {
        chain = moe_lanes_sum(chain);
        if (threadIdx.x == 0)
            inverse = 1.0f / sqrtf(chain / (float)job.n + job.eps);
    }
    __syncthreads();
    /* A thread reads the elements of a long row that it has written itself. */
    const float *source = job.n <= PIECE ? piece : job.added != NULL ? job.sum + row : x;
    for (uint32_t i = threadIdx.x; i < job.out.n_in_padded; i += THREADS) {
        float value = 0.0f;
        if (i < job.n) {
            value = source[i] * inverse * job.weight[i];
            job.y[row + i] = value;
        }
        moe_device_quantize(job.out, blockIdx.x, i, value);
    }
}

void moe_cuda_norm_quantize(moe_cuda_stream stream, const moe_cuda_fused_norm *norm)
{
    if (norm->n_rows > 0 && norm->n > 0)
        MOE_LAUNCH(moe_norm_quantize, norm->n_rows, THREADS, 0, stream, *norm);
}
