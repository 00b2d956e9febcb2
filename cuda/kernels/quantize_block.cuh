/* SPDX-License-Identifier: MIT */
/* Quantises a block of 32 activations by quant_rows.h: one warp for the block, one thread for each
 * element. Maxima and integer sums are the same in any order. */
#ifndef MOE_CUDA_QUANTIZE_BLOCK_CUH
#define MOE_CUDA_QUANTIZE_BLOCK_CUH

#include "cpu/kernels/quant_rows.h"
#include "cuda/kernels/vector_math.cuh"

__device__ static inline int moe_device_add_across(int value, int mask)
{
    return value + (int)__shfl_xor_sync(MOE_ALL_WARP, (uint32_t)value, mask);
}

/* Stores element i of a row; x is 0 in the padding. All threads of a warp call it: thread 0 with an
 * i that is a multiple of 32, the other threads with the following numbers. */
__device__ static inline void moe_device_quantize(const moe_q8_rows &out, size_t row, uint32_t i,
                                                  float x)
{
    uint32_t lane = threadIdx.x % MOE_WARP;
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
        sum16 = moe_device_add_across(sum16, half);
    int sum32 = moe_device_add_across(sum16, 16);
    size_t at = row * out.n_in_padded + i;
    out.q[at] = (int8_t)q;
    if (lane % 16 == 0) {
        out.sum16[at / 16] = sum16;
        out.dsum16[at / 16] = d * (float)sum16;
    }
    if (lane == 0) {
        out.d[at / 32] = d;
        out.sum32[at / 32] = sum32;
        out.dsum32[at / 32] = d * (float)sum32;
    }
}

#endif
