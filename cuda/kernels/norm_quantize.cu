/* SPDX-License-Identifier: MIT */
/* The sum of a row's experts, addition, root-mean-square norm and quantisation as one kernel, a
 * block for each row. */
#include "cuda/kernels/combine.cuh"
#include "cuda/kernels/norm_chain.cuh"
#include "cuda/kernels/norm_launch.h"
#include "cuda/kernels/quantize_block.cuh"

/* Threads of a block: for short rows, and for long rows. */
#define FEW_THREADS  256u
#define MOST_THREADS 1024u
#define LONG_ROW     1024u

/* The input of the norm: x, or a sum, which this function also stores. */
__device__ static inline float input_of(const moe_cuda_fused_norm &job, size_t row, uint32_t i)
{
    size_t at = row * job.n + i;
    float value = job.x[at];
    if (job.added == NULL)
        return value;
    float added;
    if (job.combine.outs != NULL) {
        added = moe_device_combine(job.combine.outs, job.combine.weights, job.combine.n_ranks,
                                   job.n, row, i);
        job.combine.y[at] = added;
    } else {
        added = job.added[at];
    }
    return job.sum[at] = value + added;
}

__global__ __launch_bounds__(MOST_THREADS) void moe_norm_quantize(moe_cuda_fused_norm job)
{
    __shared__ float piece[NORM_PIECE];
    __shared__ float inverse;
    const size_t row = (size_t)blockIdx.x * job.n;
    float chain = 0.0f;
    MOE_BEGIN_EARLY();
    MOE_WAIT_FOR_STREAM();
    for (uint32_t first = 0; first < job.n; first += NORM_PIECE) {
        uint32_t count = job.n - first < NORM_PIECE ? job.n - first : NORM_PIECE;
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < count; i += blockDim.x)
            piece[i] = input_of(job, blockIdx.x, first + i);
        __syncthreads();
        if (threadIdx.x < MOE_WARP)
            chain = moe_norm_chain(piece, count, chain);
    }
    if (threadIdx.x < MOE_WARP) {
        chain = moe_lanes_sum(chain);
        if (threadIdx.x == 0)
            inverse = moe_norm_inverse(chain, job.n, job.eps);
    }
    __syncthreads();
    /* In a long row, a thread reads only elements that it wrote itself. */
    const float *source = job.n <= NORM_PIECE ? piece
                          : job.added != NULL ? job.sum + row
                                              : job.x + row;
    for (uint32_t i = threadIdx.x; i < job.out.n_in_padded; i += blockDim.x) {
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
    uint32_t threads = norm->n < LONG_ROW ? FEW_THREADS : MOST_THREADS;
    if (norm->n_rows > 0 && norm->n > 0)
        MOE_LAUNCH_EARLY(moe_norm_quantize, norm->n_rows, threads, 0, stream, *norm);
}
