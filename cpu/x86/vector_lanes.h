/* SPDX-License-Identifier: MIT */
/* The vector kernels on the sixteen lanes of lanes16_*.h, which is included first. This is the body
 * of one file for each instruction set; no other file includes it.
 *
 * Loops run over whole chunks of 16. The remaining elements go through the same arithmetic on a
 * partial load, and accumulator lanes without an element keep their values. */
#ifndef MOE_X86_VECTOR_LANES_H
#define MOE_X86_VECTOR_LANES_H

#include "cpu/kernels/vector_ops.h"
#include "cpu/kernels/vector_reference.h"
#include "cpu/x86/always_inline.h"
#include "cpu/x86/kv_lanes.h"
#include "cpu/x86/pairs_lanes.h"

static float dot_lanes(const float *a, const float *b, uint32_t n)
{
    l16 acc = l16_zero();
    uint32_t whole = n & ~15u, rest = n & 15u;
    for (uint32_t i = 0; i < whole; i += 16)
        acc = l16_fma(l16_load(a + i), l16_load(b + i), acc);
    if (rest > 0) {
        l16 sum = l16_fma(l16_load_part(a + whole, rest), l16_load_part(b + whole, rest), acc);
        acc = l16_part_of(sum, acc, rest);
    }
    return l16_reduce(acc);
}

static void rms_norm_lanes(const float *x, const float *w, float *y, uint32_t n, float eps)
{
    l16 inv = l16_set(1.0f / sqrtf(dot_lanes(x, x, n) / (float)n + eps));
    uint32_t whole = n & ~15u, rest = n & 15u;
    for (uint32_t i = 0; i < whole; i += 16)
        l16_store(y + i, l16_mul(l16_mul(l16_load(x + i), inv), l16_load(w + i)));
    if (rest > 0) {
        l16 scaled = l16_mul(l16_load_part(x + whole, rest), inv);
        l16_store_part(y + whole, l16_mul(scaled, l16_load_part(w + whole, rest)), rest);
    }
}

static void rotate_one(float *x0, float *x1, float c, float s)
{
    float a = *x0, b = *x1;
    *x0 = fmaf(a, c, -(b * s));
    *x1 = fmaf(a, s, b * c);
}

static void rope_interleaved_lanes(float *x, const float *cos, const float *sin, uint32_t n_rot)
{
    uint32_t n_pairs = n_rot / 2, i = 0;
    for (; i + 8 <= n_pairs; i += 8)
        l16_store(x + 2 * i, l16_rotate_pairs(l16_load(x + 2 * i), cos + i, sin + i));
    for (; i < n_pairs; i++)
        rotate_one(&x[2 * i], &x[2 * i + 1], cos[i], sin[i]);
}

static void rope_halves_lanes(float *x, const float *cos, const float *sin, uint32_t n_rot)
{
    uint32_t half = n_rot / 2, i = 0;
    for (; i + 16 <= half; i += 16) {
        l16 x0 = l16_load(x + i), x1 = l16_load(x + half + i);
        l16 c = l16_load(cos + i), s = l16_load(sin + i);
        l16_store(x + i, l16_fms(x0, c, l16_mul(x1, s)));
        l16_store(x + half + i, l16_fma(x0, s, l16_mul(x1, c)));
    }
    for (; i < half; i++)
        rotate_one(&x[i], &x[half + i], cos[i], sin[i]);
}

static inline l16 sigmoid_of(l16 x)
{
    return l16_div(l16_set(1.0f), l16_add(l16_set(1.0f), l16_exp(l16_negate(x))));
}

static inline l16 silu_mul_of(l16 g, l16 u, const l16 *p)
{
    (void)p;
    l16 divisor = l16_add(l16_set(1.0f), l16_exp(l16_negate(g)));
    return l16_mul(l16_div(g, divisor), u);
}

static inline l16 clamp_of(l16 x, l16 limit, l16 low)
{
    return l16_max(low, l16_min(limit, x));
}

static void silu_mul_lanes(const float *g, const float *u, float *y, uint32_t n)
{
    pairs_lanes(g, u, y, n, silu_mul_of, NULL);
}

static inline l16 sigmoid_mul_of(l16 g, l16 x, const l16 *p)
{
    (void)p;
    return l16_mul(sigmoid_of(g), x);
}

static void sigmoid_mul_lanes(const float *g, const float *x, float *y, uint32_t n)
{
    pairs_lanes(g, x, y, n, sigmoid_mul_of, NULL);
}

/* p has alpha, limit and -limit. */
static inline l16 swiglu_clamped_of(l16 g, l16 u, const l16 *p)
{
    l16 a = l16_min(p[1], g);
    l16 divisor = l16_add(l16_set(1.0f), l16_exp(l16_negate(l16_mul(p[0], a))));
    return l16_mul(l16_div(a, divisor), l16_add(clamp_of(u, p[1], p[2]), l16_set(1.0f)));
}

static void swiglu_clamped_lanes(const float *g, const float *u, float *y, uint32_t n, float alpha,
                                 float limit)
{
    const l16 p[] = {l16_set(alpha), l16_set(limit), l16_set(-limit)};
    pairs_lanes(g, u, y, n, swiglu_clamped_of, p);
}

static void sigmoid_lanes(float *x, uint32_t n)
{
    uint32_t whole = n & ~15u, rest = n & 15u;
    for (uint32_t i = 0; i < whole; i += 16)
        l16_store(x + i, sigmoid_of(l16_load(x + i)));
    if (rest > 0)
        l16_store_part(x + whole, sigmoid_of(l16_load_part(x + whole, rest)), rest);
}

static inline l16 add_of(l16 a, l16 b, const l16 *p)
{
    (void)p;
    return l16_add(a, b);
}

static void add_lanes(const float *a, const float *b, float *y, uint32_t n)
{
    pairs_lanes(a, b, y, n, add_of, NULL);
}

static void axpy_lanes(float w, const float *x, float *acc, uint32_t n)
{
    uint32_t whole = n & ~15u, rest = n & 15u;
    l16 weight = l16_set(w);
    for (uint32_t i = 0; i < whole; i += 16)
        l16_store(acc + i, l16_fma(weight, l16_load(x + i), l16_load(acc + i)));
    if (rest > 0) {
        l16 part =
            l16_fma(weight, l16_load_part(x + whole, rest), l16_load_part(acc + whole, rest));
        l16_store_part(acc + whole, part, rest);
    }
}

static void relu_axpy_lanes(float w, const float *x, float *acc, uint32_t n)
{
    uint32_t whole = n & ~15u, rest = n & 15u;
    l16 weight = l16_set(w);
    for (uint32_t i = 0; i < whole; i += 16) {
        l16 above = l16_max(l16_load(x + i), l16_zero());
        l16_store(acc + i, l16_fma(weight, above, l16_load(acc + i)));
    }
    if (rest > 0) {
        l16 above = l16_max(l16_load_part(x + whole, rest), l16_zero());
        l16_store_part(acc + whole, l16_fma(weight, above, l16_load_part(acc + whole, rest)), rest);
    }
}

/* Adds lanes l and l + 8 of the products of n <= 4 heads to sums. */
MOE_INLINE void add_score_lanes(const float *keys, const float *q, uint32_t dim, uint32_t n,
                                uint32_t l, l16 *sums)
{
    l16 low[4], high[4];
#pragma GCC unroll 4
    for (uint32_t i = 0; i < n; i++)
        low[i] = high[i] = l16_zero();
    uint32_t k = l;
    for (; k + 8 < dim; k += 16) {
        const l16 key = l16_load(keys + 16 * k), behind = l16_load(keys + 16 * (k + 8));
#pragma GCC unroll 4
        for (uint32_t i = 0; i < n; i++) {
            low[i] = l16_fma(key, l16_set(q[i * dim + k]), low[i]);
            high[i] = l16_fma(behind, l16_set(q[i * dim + k + 8]), high[i]);
        }
    }
#pragma GCC unroll 4
    for (uint32_t i = 0; i < n; i++) {
        if (k < dim)
            low[i] = l16_fma(l16_load(keys + 16 * k), l16_set(q[i * dim + k]), low[i]);
        sums[i] = l16_add(low[i], high[i]);
    }
}

/* Adds up lanes in the order of the tree. */
MOE_INLINE void score_heads(const float *keys, const float *q, const float *w, uint32_t dim,
                            uint32_t n, l16 *score)
{
    l16 sums[8][4];
    for (uint32_t l = 0; l < 8; l++)
        add_score_lanes(keys, q, dim, n, l, sums[l]);
    for (uint32_t half = 4; half > 0; half /= 2) {
        for (uint32_t l = 0; l < half; l++) {
            for (uint32_t i = 0; i < n; i++)
                sums[l][i] = l16_add(sums[l][i], sums[l + half][i]);
        }
    }
    for (uint32_t i = 0; i < n; i++)
        *score = l16_fma(l16_set(w[i]), l16_max(sums[0][i], l16_zero()), *score);
}

static void score_keys_lanes(const float *keys, const float *q, const float *w, uint32_t n_head,
                             uint32_t dim, float *scores)
{
    _Static_assert(MOE_SCORED_KEYS == 16, "a lane for each key");
    l16 score = l16_zero();
    uint32_t h = 0;
    for (; h + 4 <= n_head; h += 4)
        score_heads(keys, q + h * dim, w + h, dim, 4, &score);
    for (; h < n_head; h++)
        score_heads(keys, q + h * dim, w + h, dim, 1, &score);
    l16_store(scores, score);
}

static void scale_lanes(float w, float *x, uint32_t n)
{
    uint32_t whole = n & ~15u, rest = n & 15u;
    l16 weight = l16_set(w);
    for (uint32_t i = 0; i < whole; i += 16)
        l16_store(x + i, l16_mul(weight, l16_load(x + i)));
    if (rest > 0)
        l16_store_part(x + whole, l16_mul(weight, l16_load_part(x + whole, rest)), rest);
}

static void clamp_lanes(float limit, float *x, uint32_t n)
{
    uint32_t whole = n & ~15u, rest = n & 15u;
    l16 high = l16_set(limit), low = l16_set(-limit);
    for (uint32_t i = 0; i < whole; i += 16)
        l16_store(x + i, clamp_of(l16_load(x + i), high, low));
    if (rest > 0)
        l16_store_part(x + whole, clamp_of(l16_load_part(x + whole, rest), high, low), rest);
}

/* Keeps four running maxima, because with a single one each step would wait for the last. */
static float max_lanes(const float *x, uint32_t n)
{
    l16 max[4];
    for (uint32_t m = 0; m < 4; m++)
        max[m] = l16_set(-INFINITY);
    uint32_t i = 0;
    for (; i + 64 <= n; i += 64)
        for (uint32_t m = 0; m < 4; m++)
            max[m] = l16_max(l16_load(x + i + 16 * m), max[m]);
    for (; i + 16 <= n; i += 16)
        max[0] = l16_max(l16_load(x + i), max[0]);
    if (i < n)
        max[1] = l16_part_of(l16_max(l16_load_part(x + i, n - i), max[1]), max[1], n - i);
    return l16_reduce_max(l16_max(l16_max(max[0], max[1]), l16_max(max[2], max[3])));
}

static void softmax_lanes(float *x, uint32_t n)
{
    l16 max = l16_set(max_lanes(x, n));
    l16 acc = l16_zero();
    uint32_t whole = n & ~15u, rest = n & 15u;
    for (uint32_t i = 0; i < whole; i += 16) {
        l16 p = l16_exp(l16_sub(l16_load(x + i), max));
        l16_store(x + i, p);
        acc = l16_add(acc, p);
    }
    if (rest > 0) {
        l16 p = l16_exp(l16_sub(l16_load_part(x + whole, rest), max));
        l16_store_part(x + whole, p, rest);
        acc = l16_part_of(l16_add(acc, p), acc, rest);
    }
    l16 sum = l16_set(l16_reduce(acc));
    for (uint32_t i = 0; i < whole; i += 16)
        l16_store(x + i, l16_div(l16_load(x + i), sum));
    if (rest > 0)
        l16_store_part(x + whole, l16_div(l16_load_part(x + whole, rest), sum), rest);
}

static float exp_sum_lanes(const float *x, uint32_t n, float max)
{
    enum { CHUNKS = MOE_EXP_SUM_LANES / 16 };
    l16 acc[CHUNKS], all = l16_set(max);
    uint32_t whole = n & ~15u, rest = n & 15u;
    for (uint32_t c = 0; c < CHUNKS; c++)
        acc[c] = l16_zero();
    for (uint32_t i = 0; i < whole; i += 16) {
        l16 *to = &acc[i / 16 % CHUNKS];
        *to = l16_add(*to, l16_exp(l16_sub(l16_load(x + i), all)));
    }
    if (rest > 0) {
        l16 *to = &acc[whole / 16 % CHUNKS];
        l16 sum = l16_add(*to, l16_exp(l16_sub(l16_load_part(x + whole, rest), all)));
        *to = l16_part_of(sum, *to, rest);
    }
    for (uint32_t h = CHUNKS / 2; h > 0; h /= 2)
        for (uint32_t c = 0; c < h; c++)
            acc[c] = l16_add(acc[c], acc[c + h]);
    return l16_reduce(acc[0]);
}

static uint32_t argmax_lanes(const float *x, uint32_t n)
{
    float max = max_lanes(x, n);
    l16 all = l16_set(max);
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        uint32_t equal = l16_equal(l16_load(x + i), all);
        if (equal != 0)
            return i + (uint32_t)__builtin_ctz(equal);
    }
    for (; i < n; i++)
        if (x[i] == max)
            return i;
    return 0;
}

static inline float merge_factor(float max, float m)
{
    if (max - m == 0.0f)
        return 1.0f; /* exp(0) */
    float factor[16];
    l16_store(factor, l16_exp(l16_set(max - m)));
    return max == -INFINITY ? 0.0f : factor[0];
}

static void attend_merge_lanes(float *max, float *sum, float *out, float page_max, float page_sum,
                               const float *page_out, uint32_t v_dim)
{
    float m = page_max > *max ? page_max : *max;
    float a = merge_factor(*max, m), b = merge_factor(page_max, m);
    *max = m;
    *sum = fmaf(*sum, a, page_sum * b);
    l16 ca = l16_set(a), cb = l16_set(b);
    uint32_t whole = v_dim & ~15u, rest = v_dim & 15u;
    for (uint32_t i = 0; i < whole; i += 16)
        l16_store(out + i, l16_fma(l16_load(out + i), ca, l16_mul(l16_load(page_out + i), cb)));
    if (rest > 0) {
        l16 added = l16_mul(l16_load_part(page_out + whole, rest), cb);
        l16_store_part(out + whole, l16_fma(l16_load_part(out + whole, rest), ca, added), rest);
    }
}

static void router_select_lanes(const moe_router_gate *gate, const float *logits, const float *bias,
                                uint32_t *ids, float *weights, float *probs)
{
    float scratch[MOE_ROUTER_MAX_EXPERTS];
    float *p = probs != NULL ? probs : scratch;
    memcpy(p, logits, gate->n_expert * sizeof(float));
    if (gate->kind == MOE_ROUTER_SIGMOID)
        sigmoid_lanes(p, gate->n_expert);
    else if (gate->kind == MOE_ROUTER_SQRT_SOFTPLUS)
        moe_sqrt_softplus_c(p, gate->n_expert);
    else
        softmax_lanes(p, gate->n_expert);
    moe_router_pick(gate, logits, bias, p, ids, weights);
}

static void vector_lanes_init(moe_vector_kernels *kernels)
{
    kernels->rms_norm = rms_norm_lanes;
    kernels->rope_interleaved = rope_interleaved_lanes;
    kernels->rope_halves = rope_halves_lanes;
    kernels->silu_mul = silu_mul_lanes;
    kernels->sigmoid_mul = sigmoid_mul_lanes;
    kernels->swiglu_clamped = swiglu_clamped_lanes;
    kernels->sigmoid = sigmoid_lanes;
    kernels->add = add_lanes;
    kernels->axpy = axpy_lanes;
    kernels->relu_axpy = relu_axpy_lanes;
    kernels->score_keys = score_keys_lanes;
    kernels->scale = scale_lanes;
    kernels->clamp = clamp_lanes;
    kernels->dot = dot_lanes;
    kernels->softmax = softmax_lanes;
    kernels->exp_sum = exp_sum_lanes;
    kernels->argmax = argmax_lanes;
    kernels->kv_store = kv_store_lanes;
    kernels->kv_load = kv_load_lanes;
    kernels->attend_merge = attend_merge_lanes;
    kernels->router_select = router_select_lanes;
}

#endif
