/* SPDX-License-Identifier: MIT */
/* log(1 + exp(x)) by the contract of cpu/kernels/delta_rule.h. */
#ifndef MOE_CUDA_SOFTPLUS_CUH
#define MOE_CUDA_SOFTPLUS_CUH

#include "cuda/kernels/vector_math.cuh"
#include "cpu/kernels/delta_rule.h"

#define MOE_LN2       0.69314718055994530942
#define MOE_ROOT_HALF 0.70710678118654752440

/* 2 atanh(s) for |s| <= 1/3. */
__device__ static inline double moe_two_atanh(double s)
{
    double square = s * s;
    double sum = 0.0;
    for (int i = MOE_SOFTPLUS_TERMS - 1; i >= 0; i--)
        sum = sum * square + 1.0 / (2 * i + 1);
    return 2.0 * s * sum;
}

/* As frexp() for a finite value of at least 1: value = m * 2^exponent with m in [1/2, 1). */
__device__ static inline double moe_split_exponent(double value, int *exponent)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    *exponent = (int)(bits >> 52) - 1022;
    bits = (bits & 0xfffffffffffffu) | (uint64_t)1022 << 52;
    memcpy(&value, &bits, sizeof value);
    return value;
}

__device__ static inline float moe_device_softplus(float x)
{
    if (!(x <= 20.0f))
        return x;
    double u = moe_device_exp(x);
    if (u <= 1.0)
        return (float)moe_two_atanh(u / (2.0 + u));
    int exponent;
    double m = moe_split_exponent(1.0 + u, &exponent);
    if (m < MOE_ROOT_HALF) {
        m *= 2.0;
        exponent--;
    }
    return (float)(exponent * MOE_LN2 + moe_two_atanh((m - 1.0) / (m + 1.0)));
}

#endif
