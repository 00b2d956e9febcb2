/* SPDX-License-Identifier: MIT */
/* Arithmetic that several kernels share: the exponential, the fold of sixteen lanes, maxima.
 *
 * Every function gives the bits of the contract in cpu/kernels/vector_ops.h. The sources are
 * compiled without contraction of products and sums, so the only fused operations are the calls of
 * fmaf().
 *
 * A vector's sixteen lanes are sixteen neighbouring threads of a warp. The tree 8, 4, 2, 1 is then
 * a butterfly: every thread adds its partner's value. Thread 0 of the sixteen ends with the
 * contract's sum, and so do the others, because addition is commutative. */
#ifndef MOE_CUDA_VECTOR_MATH_CUH
#define MOE_CUDA_VECTOR_MATH_CUH

#include "cpu/kernels/exp_constants.h"
#include "cpu/kernels/tanh_constants.h"
#include "cuda/kernels/device_common.h"

#define MOE_WARP     32u
#define MOE_LANES    16u
#define MOE_ALL_WARP 0xffffffffu

/* Four floats that one instruction loads. */
struct alignas(16) moe_float4 {
    float v[4];
};

__device__ static inline float moe_device_exp(float x)
{
    if (!(x >= MOE_EXP_LOW))
        return x < MOE_EXP_LOW ? 0.0f : x;
    if (x > MOE_EXP_HIGH)
        return MOE_INFINITY;
    float n = rintf(x * MOE_EXP_LOG2E);
    float r = fmaf(n, -MOE_EXP_LN2_HI, x);
    r = fmaf(n, -MOE_EXP_LN2_LO, r);
    float p = fmaf(MOE_EXP_C6, r, MOE_EXP_C5);
    p = fmaf(p, r, MOE_EXP_C4);
    p = fmaf(p, r, MOE_EXP_C3);
    p = fmaf(p, r, MOE_EXP_C2);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    return p * moe_device_float_of((uint32_t)((int32_t)n + 127) << 23);
}

__device__ static inline float moe_device_sigmoid(float x)
{
    return 1.0f / (1.0f + moe_device_exp(-x));
}

__device__ static inline float moe_device_tanh(float x)
{
    float a = x > -x ? x : -x;
    float z = x * x;
    float p = fmaf(MOE_TANH_C4, z, MOE_TANH_C3);
    p = fmaf(p, z, MOE_TANH_C2);
    p = fmaf(p, z, MOE_TANH_C1);
    p = fmaf(p, z, MOE_TANH_C0);
    float small = fmaf(p * z, x, x);
    float large = 1.0f - 2.0f / (moe_device_exp(a + a) + 1.0f);
    return a < MOE_TANH_SMALL ? small : x < 0.0f ? -large : large;
}

/* The greater of x and max. Ignores a NaN x; a maximum over many values begins with -infinity. */
__device__ static inline float moe_greater(float x, float max)
{
    return x > max ? x : max;
}

/* All threads of the warp call these; each half of sixteen threads gets its own result. */
__device__ static inline float moe_lanes_sum(float lane)
{
    for (int half = 8; half > 0; half /= 2)
        lane += __shfl_xor_sync(MOE_ALL_WARP, lane, half);
    return lane;
}

__device__ static inline float moe_lanes_max(float lane)
{
    for (int half = 8; half > 0; half /= 2)
        lane = moe_greater(__shfl_xor_sync(MOE_ALL_WARP, lane, half), lane);
    return lane;
}

/* The greatest of every thread's value. scratch: MOE_WARP floats of shared memory, free again after
 * the next barrier. All threads of the block call it, and all get the result. */
__device__ static inline float moe_block_max(float value, float *scratch)
{
    value = moe_lanes_max(value);
    value = moe_greater(__shfl_xor_sync(MOE_ALL_WARP, value, 16), value);
    if (threadIdx.x % MOE_WARP == 0)
        scratch[threadIdx.x / MOE_WARP] = value;
    __syncthreads();
    float max = scratch[0];
    for (uint32_t w = 1; w < blockDim.x / MOE_WARP; w++)
        max = moe_greater(scratch[w], max);
    return max;
}

/* softmax of vector_ops.h over x[0..n) in shared or global memory, in place, by the whole block.
 * scratch: MOE_WARP + 1 floats of shared memory. The caller makes x visible to all threads before
 * the call; all threads see the result after it. */
__device__ static inline void moe_block_softmax(float *x, uint32_t n, float *scratch)
{
    float max = -MOE_INFINITY;
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
        max = moe_greater(x[i], max);
    max = moe_block_max(max, scratch);
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
        x[i] = moe_device_exp(x[i] - max);
    __syncthreads();
    if (threadIdx.x < MOE_WARP) {
        /* Both halves of the warp compute the same sum, because the fold needs the whole warp. */
        float lane = 0.0f;
        for (uint32_t i = threadIdx.x % MOE_LANES; i < n; i += MOE_LANES)
            lane += x[i];
        lane = moe_lanes_sum(lane);
        if (threadIdx.x == 0)
            scratch[MOE_WARP] = lane;
    }
    __syncthreads();
    float sum = scratch[MOE_WARP];
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x)
        x[i] = x[i] / sum;
    __syncthreads();
}

#endif
