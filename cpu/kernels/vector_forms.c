/* SPDX-License-Identifier: MIT */
/* Reference C of operations that only some families have: norms with a mean, activations other than
 * SiLU, soft caps, gates. */
#include "cpu/kernels/tanh_constants.h"
#include "cpu/kernels/vector_reference.h"

#include <math.h>

float moe_tanh(float x)
{
    float a = x > -x ? x : -x;
    float z = x * x;
    float p = fmaf(MOE_TANH_C4, z, MOE_TANH_C3);
    p = fmaf(p, z, MOE_TANH_C2);
    p = fmaf(p, z, MOE_TANH_C1);
    p = fmaf(p, z, MOE_TANH_C0);
    float small = fmaf(p * z, x, x);
    float large = 1.0f - 2.0f / (moe_exp(a + a) + 1.0f);
    return a < MOE_TANH_SMALL ? small : x < 0.0f ? -large : large;
}

void moe_soft_cap_c(float cap, float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] = cap * moe_tanh(x[i] / cap);
}

void moe_layer_norm_c(const float *x, const float *w, const float *b, float *y, uint32_t n,
                      float eps)
{
    float lanes[MOE_LANES] = {0};
    float squares[MOE_LANES] = {0};
    for (uint32_t i = 0; i < n; i++)
        lanes[i % MOE_LANES] += x[i];
    float mean = moe_lanes_reduce(lanes) / (float)n;
    for (uint32_t i = 0; i < n; i++) {
        float d = x[i] - mean;
        squares[i % MOE_LANES] = fmaf(d, d, squares[i % MOE_LANES]);
    }
    float inv = 1.0f / sqrtf(moe_lanes_reduce(squares) / (float)n + eps);
    for (uint32_t i = 0; i < n; i++) {
        float scaled = (x[i] - mean) * inv * w[i];
        y[i] = b != NULL ? scaled + b[i] : scaled;
    }
}

void moe_gelu_mul_c(const float *g, const float *u, float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        float t = g[i] * fmaf(MOE_GELU_B, g[i] * g[i], MOE_GELU_A);
        y[i] = g[i] / (1.0f + moe_exp(-t)) * u[i];
    }
}

void moe_relu_mul_c(const float *g, const float *u, float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = (0.0f > g[i] ? 0.0f : g[i]) * u[i];
}

void moe_silu_clamped_c(const float *g, const float *u, float *y, uint32_t n, float limit)
{
    for (uint32_t i = 0; i < n; i++) {
        float a = limit < g[i] ? limit : g[i];
        float b = limit < u[i] ? limit : u[i];
        b = -limit > b ? -limit : b;
        y[i] = a / (1.0f + moe_exp(-a)) * b;
    }
}

void moe_silu_limited_c(const float *g, const float *u, float *y, uint32_t n, float limit)
{
    for (uint32_t i = 0; i < n; i++) {
        float a = g[i] / (1.0f + moe_exp(-g[i]));
        float b = limit < u[i] ? limit : u[i];
        a = limit < a ? limit : a;
        b = -limit > b ? -limit : b;
        y[i] = a * b;
    }
}

void moe_situ_mul_c(const float *g, const float *u, float *y, uint32_t n, float beta, float limit)
{
    for (uint32_t i = 0; i < n; i++) {
        float a = beta * moe_tanh(g[i] / beta);
        float b = limit > 0.0f ? limit * moe_tanh(u[i] / limit) : u[i];
        y[i] = a / (1.0f + moe_exp(-g[i])) * b;
    }
}
