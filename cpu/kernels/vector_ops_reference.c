/* SPDX-License-Identifier: MIT */
/* Reference C of the vector kernels, which defines the results of all others, and the choice of
 * kernels for a processor. */
#include "cpu/kernels/arch_kernels.h"
#include "cpu/kernels/vector_reference.h"

#include <math.h>
#include <string.h>

static float dot_c(const float *a, const float *b, uint32_t n)
{
    float lanes[MOE_LANES] = {0};
    for (uint32_t i = 0; i < n; i++)
        lanes[i % MOE_LANES] = fmaf(a[i], b[i], lanes[i % MOE_LANES]);
    return moe_lanes_reduce(lanes);
}

static void rms_norm_c(const float *x, const float *w, float *y, uint32_t n, float eps)
{
    float inv = 1.0f / sqrtf(dot_c(x, x, n) / (float)n + eps);
    for (uint32_t i = 0; i < n; i++)
        y[i] = x[i] * inv * w[i];
}

static void rotate(float *x0, float *x1, float c, float s)
{
    float a = *x0;
    float b = *x1;
    *x0 = fmaf(a, c, -(b * s));
    *x1 = fmaf(a, s, b * c);
}

static void rope_interleaved_c(float *x, const float *cos, const float *sin, uint32_t n_rot)
{
    for (uint32_t i = 0; i < n_rot / 2; i++)
        rotate(&x[2 * i], &x[2 * i + 1], cos[i], sin[i]);
}

static void rope_halves_c(float *x, const float *cos, const float *sin, uint32_t n_rot)
{
    for (uint32_t i = 0; i < n_rot / 2; i++)
        rotate(&x[i], &x[n_rot / 2 + i], cos[i], sin[i]);
}

static void silu_mul_c(const float *g, const float *u, float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = g[i] / (1.0f + moe_exp(-g[i])) * u[i];
}

static void sigmoid_mul_c(const float *g, const float *x, float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = 1.0f / (1.0f + moe_exp(-g[i])) * x[i];
}

static void swiglu_clamped_c(const float *g, const float *u, float *y, uint32_t n, float alpha,
                             float limit)
{
    for (uint32_t i = 0; i < n; i++) {
        float a = limit < g[i] ? limit : g[i];
        float b = limit < u[i] ? limit : u[i];
        b = -limit > b ? -limit : b;
        y[i] = a / (1.0f + moe_exp(-(alpha * a))) * (b + 1.0f);
    }
}

static void add_c(const float *a, const float *b, float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = a[i] + b[i];
}

static void axpy_c(float w, const float *x, float *acc, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        acc[i] = fmaf(w, x[i], acc[i]);
}

static void relu_axpy_c(float w, const float *x, float *acc, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        acc[i] = fmaf(w, x[i] > 0.0f ? x[i] : 0.0f, acc[i]);
}

static void score_keys_c(const float *keys, const float *q, const float *w, uint32_t n_head,
                         uint32_t dim, float *scores)
{
    memset(scores, 0, MOE_SCORED_KEYS * sizeof *scores);
    for (uint32_t h = 0; h < n_head; h++) {
        float acc[16][MOE_SCORED_KEYS] = {{0}};
        for (uint32_t k = 0; k < dim; k++) {
            for (uint32_t i = 0; i < MOE_SCORED_KEYS; i++)
                acc[k % 16][i] = fmaf(keys[(size_t)k * MOE_SCORED_KEYS + i], q[(size_t)h * dim + k],
                                      acc[k % 16][i]);
        }
        for (uint32_t half = 8; half > 0; half /= 2) {
            for (uint32_t i = 0; i < half * MOE_SCORED_KEYS; i++)
                acc[i / MOE_SCORED_KEYS][i % MOE_SCORED_KEYS] +=
                    acc[i / MOE_SCORED_KEYS + half][i % MOE_SCORED_KEYS];
        }
        relu_axpy_c(w[h], acc[0], scores, MOE_SCORED_KEYS);
    }
}

static void scale_c(float w, float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] = w * x[i];
}

static void clamp_c(float limit, float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        x[i] = x[i] > limit ? limit : x[i];
        x[i] = x[i] < -limit ? -limit : x[i];
    }
}

static float exp_sum_c(const float *x, uint32_t n, float max)
{
    float lanes[MOE_EXP_SUM_LANES] = {0};
    for (uint32_t i = 0; i < n; i++)
        lanes[i % MOE_EXP_SUM_LANES] += moe_exp(x[i] - max);
    for (uint32_t h = MOE_EXP_SUM_LANES / 2; h > 0; h /= 2)
        for (uint32_t l = 0; l < h; l++)
            lanes[l] += lanes[l + h];
    return lanes[0];
}

static uint32_t argmax_c(const float *x, uint32_t n)
{
    float max = moe_vector_max_c(x, n);
    for (uint32_t i = 0; i < n; i++)
        if (x[i] == max)
            return i;
    return 0;
}

void moe_vector_kernels_reference(moe_vector_kernels *kernels)
{
    *kernels = (moe_vector_kernels){
        .rms_norm = rms_norm_c,
        .rope_interleaved = rope_interleaved_c,
        .rope_halves = rope_halves_c,
        .silu_mul = silu_mul_c,
        .sigmoid_mul = sigmoid_mul_c,
        .swiglu_clamped = swiglu_clamped_c,
        .layer_norm = moe_layer_norm_c,
        .gelu_mul = moe_gelu_mul_c,
        .relu_mul = moe_relu_mul_c,
        .silu_limited = moe_silu_limited_c,
        .silu_clamped = moe_silu_clamped_c,
        .situ_mul = moe_situ_mul_c,
        .soft_cap = moe_soft_cap_c,
        .sigmoid = moe_sigmoid_c,
        .add = add_c,
        .axpy = axpy_c,
        .relu_axpy = relu_axpy_c,
        .score_keys = score_keys_c,
        .scale = scale_c,
        .clamp = clamp_c,
        .dot = dot_c,
        .softmax = moe_softmax_c,
        .exp_sum = exp_sum_c,
        .log_softmax_at = moe_log_softmax_at_c,
        .argmax = argmax_c,
        .kv_store = moe_kv_store_c,
        .kv_load = moe_kv_load_c,
        .attend_page = moe_attend_page_c,
        .attend_merge = moe_attend_merge_c,
        .convolve = moe_convolve_c,
        .row_decays = moe_row_decays_c,
        .bounded_decays = moe_bounded_decays_c,
        .delta_columns = moe_delta_columns_c,
        .channel_columns = moe_channel_columns_c,
        .space_columns = moe_space_columns_c,
        .scan_columns = moe_scan_columns_c,
        .router_select = moe_router_select_c,
    };
}
