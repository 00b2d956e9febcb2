/* SPDX-License-Identifier: MIT */
/* The operations of vector_forms.c on the sixteen lanes of lanes16_*.h, which is included first.
 * Partial chunks are handled as in vector_lanes.h. This is a part of one file for each instruction
 * set; no other file includes it. */
#ifndef MOE_X86_FORMS_LANES_H
#define MOE_X86_FORMS_LANES_H

#include "cpu/kernels/vector_ops.h"
#include "cpu/x86/pairs_lanes.h"
#include "cpu/x86/tanh_lanes.h"

static float sum_lanes(const float *x, uint32_t n)
{
    l16 acc = l16_zero();
    uint32_t whole = n & ~15u, rest = n & 15u;
    for (uint32_t i = 0; i < whole; i += 16)
        acc = l16_add(acc, l16_load(x + i));
    if (rest > 0)
        acc = l16_part_of(l16_add(acc, l16_load_part(x + whole, rest)), acc, rest);
    return l16_reduce(acc);
}

static float squares_lanes(const float *x, l16 mean, uint32_t n)
{
    l16 acc = l16_zero();
    uint32_t whole = n & ~15u, rest = n & 15u;
    for (uint32_t i = 0; i < whole; i += 16) {
        l16 d = l16_sub(l16_load(x + i), mean);
        acc = l16_fma(d, d, acc);
    }
    if (rest > 0) {
        l16 d = l16_sub(l16_load_part(x + whole, rest), mean);
        acc = l16_part_of(l16_fma(d, d, acc), acc, rest);
    }
    return l16_reduce(acc);
}

static void layer_norm_lanes(const float *x, const float *w, const float *b, float *y, uint32_t n,
                             float eps)
{
    l16 mean = l16_set(sum_lanes(x, n) / (float)n);
    l16 inv = l16_set(1.0f / sqrtf(squares_lanes(x, mean, n) / (float)n + eps));
    uint32_t whole = n & ~15u, rest = n & 15u;
    for (uint32_t i = 0; i < whole; i += 16) {
        l16 v = l16_mul(l16_mul(l16_sub(l16_load(x + i), mean), inv), l16_load(w + i));
        l16_store(y + i, b != NULL ? l16_add(v, l16_load(b + i)) : v);
    }
    if (rest > 0) {
        l16 v = l16_mul(l16_sub(l16_load_part(x + whole, rest), mean), inv);
        v = l16_mul(v, l16_load_part(w + whole, rest));
        v = b != NULL ? l16_add(v, l16_load_part(b + whole, rest)) : v;
        l16_store_part(y + whole, v, rest);
    }
}

static inline l16 gelu_mul_of(l16 g, l16 u, const l16 *p)
{
    (void)p;
    l16 t = l16_fma(l16_set(MOE_GELU_B), l16_mul(g, g), l16_set(MOE_GELU_A));
    l16 divisor = l16_add(l16_set(1.0f), l16_exp(l16_negate(l16_mul(g, t))));
    return l16_mul(l16_div(g, divisor), u);
}

static void gelu_mul_lanes(const float *g, const float *u, float *y, uint32_t n)
{
    pairs_lanes(g, u, y, n, gelu_mul_of, NULL);
}

static inline l16 relu_mul_of(l16 g, l16 u, const l16 *p)
{
    (void)p;
    return l16_mul(l16_max(l16_zero(), g), u);
}

static void relu_mul_lanes(const float *g, const float *u, float *y, uint32_t n)
{
    pairs_lanes(g, u, y, n, relu_mul_of, NULL);
}

/* p has limit and -limit. */
static inline l16 silu_limited_of(l16 g, l16 u, const l16 *p)
{
    l16 a = l16_div(g, l16_add(l16_set(1.0f), l16_exp(l16_negate(g))));
    return l16_mul(l16_min(p[0], a), l16_max(p[1], l16_min(p[0], u)));
}

static void silu_limited_lanes(const float *g, const float *u, float *y, uint32_t n, float limit)
{
    const l16 p[] = {l16_set(limit), l16_set(-limit)};
    pairs_lanes(g, u, y, n, silu_limited_of, p);
}

static inline l16 silu_clamped_of(l16 g, l16 u, const l16 *p)
{
    l16 a = l16_min(p[0], g);
    l16 silu = l16_div(a, l16_add(l16_set(1.0f), l16_exp(l16_negate(a))));
    return l16_mul(silu, l16_max(p[1], l16_min(p[0], u)));
}

static void silu_clamped_lanes(const float *g, const float *u, float *y, uint32_t n, float limit)
{
    const l16 p[] = {l16_set(limit), l16_set(-limit)};
    pairs_lanes(g, u, y, n, silu_clamped_of, p);
}

/* p has beta and limit. */
static inline l16 situ_mul_of(l16 g, l16 u, const l16 *p)
{
    l16 divisor = l16_add(l16_set(1.0f), l16_exp(l16_negate(g)));
    return l16_mul(l16_div(l16_soft_cap(p[0], g), divisor), l16_soft_cap(p[1], u));
}

static inline l16 situ_mul_unlimited_of(l16 g, l16 u, const l16 *p)
{
    l16 divisor = l16_add(l16_set(1.0f), l16_exp(l16_negate(g)));
    return l16_mul(l16_div(l16_soft_cap(p[0], g), divisor), u);
}

static void situ_mul_lanes(const float *g, const float *u, float *y, uint32_t n, float beta,
                           float limit)
{
    const l16 p[] = {l16_set(beta), l16_set(limit)};
    if (limit > 0.0f)
        pairs_lanes(g, u, y, n, situ_mul_of, p);
    else
        pairs_lanes(g, u, y, n, situ_mul_unlimited_of, p);
}

static void soft_cap_lanes(float cap, float *x, uint32_t n)
{
    uint32_t whole = n & ~15u, rest = n & 15u;
    l16 limit = l16_set(cap);
    for (uint32_t i = 0; i < whole; i += 16)
        l16_store(x + i, l16_soft_cap(limit, l16_load(x + i)));
    if (rest > 0)
        l16_store_part(x + whole, l16_soft_cap(limit, l16_load_part(x + whole, rest)), rest);
}

static void forms_lanes_init(moe_vector_kernels *kernels)
{
    kernels->layer_norm = layer_norm_lanes;
    kernels->gelu_mul = gelu_mul_lanes;
    kernels->relu_mul = relu_mul_lanes;
    kernels->silu_limited = silu_limited_lanes;
    kernels->silu_clamped = silu_clamped_lanes;
    kernels->situ_mul = situ_mul_lanes;
    kernels->soft_cap = soft_cap_lanes;
}

#endif
