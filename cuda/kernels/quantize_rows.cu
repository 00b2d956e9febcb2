/* SPDX-License-Identifier: MIT */
/* Quantises activation rows to 8 bits: a warp for each block of 32, a thread for each element. */
#include "cuda/kernels/activation.cuh"
#include "cuda/kernels/product_launch.h"
#include "cuda/kernels/quantize_block.cuh"

#define WARPS_A_BLOCK 8u

template <bool ACTIVATED>
__global__ __launch_bounds__(WARPS_A_BLOCK *MOE_WARP) void moe_quantize(moe_cuda_quantize job)
{
    MOE_BEGIN_EARLY();
    MOE_WAIT_FOR_STREAM();
    uint32_t blocks = job.out.n_in_padded / 32;
    size_t number = (size_t)blockIdx.x * WARPS_A_BLOCK + threadIdx.x / MOE_WARP;
    if (number >= (size_t)job.n_rows * blocks)
        return;
    uint32_t lane = threadIdx.x % MOE_WARP;
    uint32_t row = (uint32_t)(number / blocks);
    uint32_t i = (uint32_t)(number % blocks) * 32 + lane;
    float x = 0.0f;
    if (i < job.out.n_in) {
        size_t at = job.n_inner != 0
                        ? row / job.n_inner * job.outer_stride + row % job.n_inner * job.x_stride
                        : row * job.x_stride;
        x = job.x[at + i];
        if (ACTIVATED) {
            float up = job.up[at + i];
            if (job.scales != NULL) {
                x = job.scales[row] * x;
                up = job.scales[row] * up;
            }
            x = moe_device_activate(job.activation, x, up);
        }
    }
    moe_device_quantize(job.out, job.first_row + (size_t)row, i, x);
}

void moe_cuda_quantize_rows(moe_cuda_stream stream, const moe_cuda_quantize *quantize)
{
    size_t blocks = (size_t)quantize->n_rows * (quantize->out.n_in_padded / 32);
    uint32_t grid = (uint32_t)((blocks + WARPS_A_BLOCK - 1) / WARPS_A_BLOCK);
    if (grid == 0)
        return;
    if (quantize->up != NULL)
        MOE_LAUNCH_EARLY(moe_quantize<true>, grid, WARPS_A_BLOCK * MOE_WARP, 0, stream, *quantize);
    else
        MOE_LAUNCH_EARLY(moe_quantize<false>, grid, WARPS_A_BLOCK * MOE_WARP, 0, stream, *quantize);
}
