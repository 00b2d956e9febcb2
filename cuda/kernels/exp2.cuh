/* SPDX-License-Identifier: MIT */
/* Powers of two for attention by matrix units, whose scores are in units of log 2. */
#ifndef MOE_CUDA_EXP2_CUH
#define MOE_CUDA_EXP2_CUH

#include "cuda/kernels/device_common.h"
#include "cuda/kernels/exp2_constants.h"

/* 2^x for x up to 127. Exactly 1 at 0, and exactly 0 from -127 on (also for a NaN). */
__device__ static inline float moe_device_exp2(float x)
{
    float limited = fmaxf(x, MOE_EXP2_LOW);
    float rounded = limited + MOE_EXP2_ROUND;
    float f = limited - (rounded - MOE_EXP2_ROUND);
    float p = fmaf(MOE_EXP2_C5, f, MOE_EXP2_C4);
    p = fmaf(p, f, MOE_EXP2_C3);
    p = fmaf(p, f, MOE_EXP2_C2);
    p = fmaf(p, f, MOE_EXP2_C1);
    p = fmaf(p, f, 1.0f);
    return moe_device_float_of(moe_device_bits_of(p) + (moe_device_bits_of(rounded) << 23));
}

#endif
