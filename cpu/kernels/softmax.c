/* SPDX-License-Identifier: MIT */
/* Reference C of functions that attention and routers share: sigmoid, maximum, softmax. */
#include <math.h>

#include "cpu/kernels/vector_reference.h"

void moe_sigmoid_c(float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] = 1.0f / (1.0f + moe_exp(-x[i]));
}

float moe_vector_max_c(const float *x, uint32_t n)
{
    float max = -INFINITY;
    for (uint32_t i = 0; i < n; i++)
        max = x[i] > max ? x[i] : max;
    return max;
}

void moe_softmax_c(float *x, uint32_t n)
{
    float max = moe_vector_max_c(x, n);
    float lanes[MOE_LANES] = {0};
    for (uint32_t i = 0; i < n; i++) {
        x[i] = moe_exp(x[i] - max);
        lanes[i % MOE_LANES] += x[i];
    }
    float sum = moe_lanes_reduce(lanes);
    for (uint32_t i = 0; i < n; i++)
        x[i] /= sum;
}

double moe_log_softmax_at_c(const float *logits, uint32_t n, uint32_t index)
{
    double max = moe_vector_max_c(logits, n);
    double sum = 0.0;
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)logits[i] - max);
    return (double)logits[index] - max - log(sum);
}
