/* SPDX-License-Identifier: MIT */
/* softplus(x) = log(1 + exp(x)), computed as in cpu/kernels/delta_rule.h, which uses it for the
 * decay of a recurrent state's rows: a series of MOE_DECAY_TERMS terms. */
#ifndef MOE_CUDA_SHORT_SOFTPLUS_CUH
#define MOE_CUDA_SHORT_SOFTPLUS_CUH

#include "cpu/kernels/delta_rule.h"
#include "cuda/kernels/vector_math.cuh"

__device__ static inline float moe_short_softplus(float x)
{
    float u = moe_device_exp(-(x > -x ? x : -x));
    float s = u / (2.0f + u);
    float z = s * s;
    float p = 1.0f / (2 * MOE_DECAY_TERMS - 1);
    for (int k = MOE_DECAY_TERMS - 2; k >= 0; k--)
        p = fmaf(p, z, 1.0f / (float)(2 * k + 1));
    return (x > 0.0f ? x : 0.0f) + (s + s) * p;
}

#endif
