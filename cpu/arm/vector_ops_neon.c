/* SPDX-License-Identifier: MIT */
/* The vector kernels on which a token's time depends: sums, norms, gates, attention over keys and
 * values in F16, F32 and Q8_0. All others run in reference C. */
#include "cpu/arm/matmul_arm.h"
#include "cpu/arm/vector_neon.h"
#include "cpu/kernels/block_formats.h"
#include "cpu/kernels/vector_reference.h"

#include <stdbool.h>
#include <string.h>

static float dot(const float *a, const float *b, uint32_t n)
{
    lanes16 acc = {0};
    uint32_t i = 0;
    for (; i + MOE_LANES <= n; i += MOE_LANES) {
        acc = lanes_fma(acc, lanes_load(a + i), lanes_load(b + i));
    }
    if (i < n) {
        float lanes[MOE_LANES];
        for (int part = 0; part < 4; part++) {
            vst1q_f32(lanes + 4 * part, acc.part[part]);
        }
        for (uint32_t l = 0; i < n; i++, l++) {
            lanes[l] = fmaf(a[i], b[i], lanes[l]);
        }
        acc = lanes_load(lanes);
    }
    return lanes_reduce(acc);
}

static void rms_norm(const float *x, const float *w, float *y, uint32_t n, float eps)
{
    const float inv = 1.0f / sqrtf(dot(x, x, n) / (float)n + eps);
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4) {
        vst1q_f32(y + i, vmulq_f32(vmulq_n_f32(vld1q_f32(x + i), inv), vld1q_f32(w + i)));
    }
    for (; i < n; i++) {
        y[i] = x[i] * inv * w[i];
    }
}

MOE_ARM_INLINE float32x4_t one_and_exp(float32x4_t g)
{
    return vaddq_f32(vdupq_n_f32(1.0f), exp_neon(vnegq_f32(g)));
}

static void silu_mul(const float *g, const float *u, float *y, uint32_t n)
{
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const float32x4_t v = vld1q_f32(g + i);
        vst1q_f32(y + i, vmulq_f32(vdivq_f32(v, one_and_exp(v)), vld1q_f32(u + i)));
    }
    for (; i < n; i++) {
        y[i] = g[i] / (1.0f + moe_exp(-g[i])) * u[i];
    }
}

static void sigmoid_mul(const float *g, const float *x, float *y, uint32_t n)
{
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const float32x4_t gate = vdivq_f32(vdupq_n_f32(1.0f), one_and_exp(vld1q_f32(g + i)));
        vst1q_f32(y + i, vmulq_f32(gate, vld1q_f32(x + i)));
    }
    for (; i < n; i++) {
        y[i] = 1.0f / (1.0f + moe_exp(-g[i])) * x[i];
    }
}

static float exp_sum(const float *x, uint32_t n, float max)
{
    float lanes[MOE_EXP_SUM_LANES] = {0};
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4) {
        float *lane = lanes + i % MOE_EXP_SUM_LANES;
        const float32x4_t e = exp_neon(vsubq_f32(vld1q_f32(x + i), vdupq_n_f32(max)));
        vst1q_f32(lane, vaddq_f32(vld1q_f32(lane), e));
    }
    for (; i < n; i++) {
        lanes[i % MOE_EXP_SUM_LANES] += moe_exp(x[i] - max);
    }
    for (uint32_t h = MOE_EXP_SUM_LANES / 2; h > 0; h /= 2) {
        for (uint32_t l = 0; l < h; l++) {
            lanes[l] += lanes[l + h];
        }
    }
    return lanes[0];
}

/* ---- Attention ---- */

/* Elements i .. i + 15 of a row of the cache; i is a multiple of 16. */
MOE_ARM_INLINE lanes16 load_cached(moe_kv_type type, const uint8_t *row, uint32_t i)
{
    if (type == MOE_KV_F32) {
        return lanes_load((const float *)(const void *)row + i);
    }
    if (type == MOE_KV_F16) {
        return lanes_load_half((const uint16_t *)(const void *)row + i);
    }
    const uint8_t *block = row + i / MOE_KV_Q8_BLOCK * MOE_KV_Q8_BYTES;
    uint16_t half;
    memcpy(&half, block, sizeof half);
    const float d = moe_half_to_float(half);
    const int8x16_t q = vld1q_s8((const int8_t *)block + 2 + i % MOE_KV_Q8_BLOCK);
    const int16x8_t low = vmovl_s8(vget_low_s8(q)), high = vmovl_s8(vget_high_s8(q));
    const int32x4_t codes[4] = {vmovl_s16(vget_low_s16(low)), vmovl_s16(vget_high_s16(low)),
                                vmovl_s16(vget_low_s16(high)), vmovl_s16(vget_high_s16(high))};
    lanes16 v;
    for (int part = 0; part < 4; part++) {
        v.part[part] = vmulq_n_f32(vcvtq_f32_s32(codes[part]), d);
    }
    return v;
}

MOE_ARM_INLINE void score(moe_kv_type type, const moe_attend_args *args, const float *q,
                          float *weights)
{
    for (uint32_t j = 0; j < args->n_valid; j++) {
        const uint8_t *row = moe_page_row(args->k_rows, args->k, args->k_row_bytes, j);
        lanes16 acc = {0};
        for (uint32_t i = 0; i < args->k_dim; i += MOE_LANES) {
            acc = lanes_fma(acc, lanes_load(q + i), load_cached(type, row, i));
        }
        weights[j] = args->scale * lanes_reduce(acc);
    }
}

/* Replaces scores by their exponentials; returns the sum of the exponentials. */
static float exponentials(float *weights, uint32_t n, float max)
{
    float lanes[MOE_LANES] = {0};
    uint32_t j = 0;
    for (; j + 4 <= n; j += 4) {
        float *lane = lanes + j % MOE_LANES;
        const float32x4_t e = exp_neon(vsubq_f32(vld1q_f32(weights + j), vdupq_n_f32(max)));
        vst1q_f32(weights + j, e);
        vst1q_f32(lane, vaddq_f32(vld1q_f32(lane), e));
    }
    for (; j < n; j++) {
        weights[j] = moe_exp(weights[j] - max);
        lanes[j % MOE_LANES] += weights[j];
    }
    return lanes_reduce(lanes_load(lanes));
}

MOE_ARM_INLINE void weigh_values_neon(moe_kv_type type, const moe_attend_args *args,
                                      const float *weights, float *out)
{
    for (uint32_t i = 0; i < args->v_dim; i += MOE_LANES) {
        lanes16 acc = {0};
        for (uint32_t j = 0; j < args->n_valid; j++) {
            const uint8_t *row = moe_page_row(args->v_rows, args->v, args->v_row_bytes, j);
            const lanes16 v = load_cached(type, row, i);
            for (int part = 0; part < 4; part++) {
                acc.part[part] = vfmaq_n_f32(acc.part[part], v.part[part], weights[j]);
            }
        }
        for (int part = 0; part < 4; part++) {
            vst1q_f32(out + i + 4 * part, acc.part[part]);
        }
    }
}

MOE_ARM_INLINE void attend(moe_kv_type type, const moe_attend_args *args)
{
    float weights[MOE_KV_PAGE];
    for (uint32_t h = 0; h < args->n_q; h++) {
        score(type, args, args->q + (size_t)h * args->k_dim, weights);
        if (args->cap != 0.0f) {
            moe_soft_cap_c(args->cap, weights, args->n_valid);
        }
        const float max = moe_vector_max_c(weights, args->n_valid) + 0.0f;
        args->max[h] = max;
        args->sum[h] = exponentials(weights, args->n_valid, max);
        weigh_values_neon(type, args, weights, args->out + (size_t)h * args->v_dim);
    }
}

static void attend_page(const moe_attend_args *args)
{
    const bool whole = args->k_dim % MOE_LANES == 0 && args->v_dim % MOE_LANES == 0;
    if (whole && args->type == MOE_KV_F16) {
        attend(MOE_KV_F16, args);
    } else if (whole && args->type == MOE_KV_F32) {
        attend(MOE_KV_F32, args);
    } else if (whole && args->type == MOE_KV_Q8_0) {
        attend(MOE_KV_Q8_0, args);
    } else {
        moe_attend_page_c(args);
    }
}

void moe_vector_init_neon(moe_vector_kernels *kernels)
{
    kernels->dot = dot;
    kernels->rms_norm = rms_norm;
    kernels->silu_mul = silu_mul;
    kernels->sigmoid_mul = sigmoid_mul;
    kernels->exp_sum = exp_sum;
    kernels->attend_page = attend_page;
}
