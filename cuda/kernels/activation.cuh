/* SPDX-License-Identifier: MIT */
/* Joins an expert's gate and up: the activations of moe_activation, by vector_ops.h. */
#ifndef MOE_CUDA_ACTIVATION_CUH
#define MOE_CUDA_ACTIVATION_CUH

#include "cpu/kernels/tanh_constants.h"
#include "cuda/kernels/vector_launch.h"
#include "cuda/kernels/vector_math.cuh"

__device__ static inline float moe_device_silu(float g)
{
    return g / (1.0f + moe_device_exp(-g));
}

/* Limits g to at most `limit`. moe_device_limit_both() limits u to -limit .. limit. */
__device__ static inline float moe_device_limit_above(float limit, float g)
{
    return limit < g ? limit : g;
}

__device__ static inline float moe_device_limit_both(float limit, float u)
{
    float b = limit < u ? limit : u;
    return -limit > b ? -limit : b;
}

__device__ static inline float moe_device_activate(const moe_activation &activation, float g,
                                                   float u)
{
    switch (activation.kind) {
    case MOE_ACTIVATION_SWIGLU_CLAMPED: {
        float a = moe_device_limit_above(activation.limit, g);
        float b = moe_device_limit_both(activation.limit, u);
        return a / (1.0f + moe_device_exp(-(activation.alpha * a))) * (b + 1.0f);
    }
    case MOE_ACTIVATION_SILU_LIMITED:
        return moe_device_limit_above(activation.limit, moe_device_silu(g)) *
               moe_device_limit_both(activation.limit, u);
    case MOE_ACTIVATION_SILU_CLAMPED:
        return moe_device_silu(moe_device_limit_above(activation.limit, g)) *
               moe_device_limit_both(activation.limit, u);
    case MOE_ACTIVATION_GELU: {
        float t = g * fmaf(MOE_GELU_B, g * g, MOE_GELU_A);
        return g / (1.0f + moe_device_exp(-t)) * u;
    }
    case MOE_ACTIVATION_SITU: {
        float a = activation.alpha * moe_device_tanh(g / activation.alpha);
        float b =
            activation.limit > 0.0f ? activation.limit * moe_device_tanh(u / activation.limit) : u;
        return a / (1.0f + moe_device_exp(-g)) * b;
    }
    case MOE_ACTIVATION_RELU:
        return (0.0f > g ? 0.0f : g) * u;
    default:
        return moe_device_silu(g) * u;
    }
}

#endif
