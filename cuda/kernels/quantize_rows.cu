/* SPDX-License-Identifier: MIT */
/* Quantises activation rows to 8 bits by quant_rows.h: a warp for each block of 32, a thread for
 * each element, maxima and sums by shuffles. Maxima and integer sums are the same in any order. */
#include "cuda/kernels/activation.cuh"
#include "cuda/kernels/product_launch.h"

#define WARPS_A_BLOCK 8u

__device__ static inline int add_across(int value, int mask)
{
    return value + (int)__shfl_xor_sync(MOE_ALL_WARP, (uint32_t)value, mask);
}

template <bool ACTIVATED>
__global__ __launch_bounds__(WARPS_A_BLOCK *MOE_WARP) void moe_quantize(moe_cuda_quantize job)
{
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
    float amax = fmaxf(0.0f, fabsf(x));
    for (int half = 16; half > 0; half /= 2)
        amax = fmaxf(amax, __shfl_xor_sync(MOE_ALL_WARP, amax, half));
    float d = amax / 127.0f;
    float inverse = amax > 0.0f ? 127.0f / amax : 0.0f;
    if (inverse == MOE_INFINITY)
        inverse = 0.0f;
    /* Adding 1.5 * 2^23 rounds to the nearest even integer, which is then in the low byte. */
    int q = (int8_t)(moe_device_bits_of(x * inverse + 12582912.0f) & 255);
    int sum16 = q;
    for (int half = 1; half < 16; half *= 2)
        sum16 = add_across(sum16, half);
    int sum32 = add_across(sum16, 16);
    size_t at = (job.first_row + (size_t)row) * job.out.n_in_padded + i;
    job.out.q[at] = (int8_t)q;
    if (lane % 16 == 0) {
        job.out.sum16[at / 16] = sum16;
        job.out.dsum16[at / 16] = d * (float)sum16;
    }
    if (lane == 0) {
        job.out.d[at / 32] = d;
        job.out.sum32[at / 32] = sum32;
        job.out.dsum32[at / 32] = d * (float)sum32;
    }
}

void moe_cuda_quantize_rows(moe_cuda_stream stream, const moe_cuda_quantize *quantize)
{
    size_t blocks = (size_t)quantize->n_rows * (quantize->out.n_in_padded / 32);
    uint32_t grid = (uint32_t)((blocks + WARPS_A_BLOCK - 1) / WARPS_A_BLOCK);
    if (grid == 0)
        return;
    if (quantize->up != NULL)
        MOE_LAUNCH(moe_quantize<true>, grid, WARPS_A_BLOCK * MOE_WARP, 0, stream, *quantize);
    else
        MOE_LAUNCH(moe_quantize<false>, grid, WARPS_A_BLOCK * MOE_WARP, 0, stream, *quantize);
}
