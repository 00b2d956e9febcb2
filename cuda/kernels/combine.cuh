/* SPDX-License-Identifier: MIT */
/* The sum of a row's experts, in the order of its ranks; a rank of weight 0 is not read. */
#ifndef MOE_CUDA_COMBINE_CUH
#define MOE_CUDA_COMBINE_CUH

#include "cuda/kernels/vector_launch.h"
#include "cuda/kernels/vector_math.cuh"

/* Computes element i of row `row`; outs and weights are those of all rows. */
__device__ static inline float moe_device_combine(const float *outs, const float *weights,
                                                  uint32_t n_ranks, uint32_t n, size_t row,
                                                  uint32_t i)
{
    weights += row * n_ranks;
    outs += row * n_ranks * n + i;
    float sum = 0.0f;
#pragma unroll 4
    for (uint32_t k = 0; k < n_ranks; k++) {
        float weight = weights[k];
        if (weight != 0.0f)
            sum = fmaf(weight, outs[(size_t)k * n], sum);
    }
    return sum;
}

#endif
