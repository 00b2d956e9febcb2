/* SPDX-License-Identifier: MIT */
/* The short convolution and the gated delta rule on the sixteen lanes of lanes16_*.h, which is
 * included first. This is the body of one file for each instruction set; no other file includes it.
 *
 * A lane is a column of the state. Four chunks of sixteen columns go down the rows together: their
 * sums do not wait for one another, and they share each row's key and query. */
#ifndef MOE_X86_DELTA_LANES_H
#define MOE_X86_DELTA_LANES_H

#include "cpu/kernels/delta_rule.h"
#include "cpu/x86/always_inline.h"

/* The loop's bounds are constant once inlined; unrolled, its accumulators are registers. */
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 4")
#endif

static inline l16 silu_of(l16 x)
{
    return l16_div(x, l16_add(l16_set(1.0f), l16_exp(l16_negate(x))));
}

static void conv_silu_lanes(const float *const *taps, const float *weights, uint32_t n_taps,
                            float *y, uint32_t n)
{
    uint32_t whole = n & ~15u, rest = n & 15u;
    for (uint32_t i = 0; i < whole; i += 16) {
        l16 c = l16_zero();
        for (uint32_t t = 0; t < n_taps; t++)
            c = l16_fma(l16_load(weights + (size_t)t * n + i), l16_load(taps[t] + i), c);
        l16_store(y + i, silu_of(c));
    }
    if (rest > 0) {
        l16 c = l16_zero();
        for (uint32_t t = 0; t < n_taps; t++)
            c = l16_fma(l16_load_part(weights + (size_t)t * n + whole, rest),
                        l16_load_part(taps[t] + whole, rest), c);
        l16_store_part(y + whole, silu_of(c), rest);
    }
}

/* One token for the chunks of columns from `first` on. */
MOE_INLINE void take_chunks(const moe_delta_args *a, uint32_t t, uint32_t first, uint32_t n_chunks)
{
    const float *q = a->q + t * a->qk_stride;
    const float *k = a->k + t * a->qk_stride;
    const float *v = a->v + t * a->v_stride + first;
    float *state = a->state + first;
    l16 sum[4], d[4];
    l16 decay = l16_set(a->decay[t]), minus = l16_negate(decay), beta = l16_set(a->beta[t]);
    UNROLL
    for (uint32_t c = 0; c < n_chunks; c++)
        sum[c] = l16_zero();
    for (uint32_t i = 0; i < a->key_dim; i++) {
        l16 key = l16_set(k[i]);
        UNROLL
        for (uint32_t c = 0; c < n_chunks; c++)
            sum[c] = l16_fma(l16_load(state + (size_t)i * a->n + 16 * c), key, sum[c]);
    }
    UNROLL
    for (uint32_t c = 0; c < n_chunks; c++) {
        d[c] = l16_mul(beta, l16_fma(minus, sum[c], l16_load(v + 16 * c)));
        sum[c] = l16_zero();
    }
    for (uint32_t i = 0; i < a->key_dim; i++) {
        l16 key = l16_set(k[i]), query = l16_set(q[i]);
        UNROLL
        for (uint32_t c = 0; c < n_chunks; c++) {
            float *at = state + (size_t)i * a->n + 16 * c;
            l16 s = l16_fma(key, d[c], l16_mul(decay, l16_load(at)));
            l16_store(at, s);
            sum[c] = l16_fma(s, query, sum[c]);
        }
    }
    for (uint32_t c = 0; c < n_chunks && t >= a->n_silent; c++)
        l16_store(a->out + (t - a->n_silent) * a->out_stride + first + 16 * c, sum[c]);
}

/* ... for the n < 16 columns from `first` on. */
static void take_part(const moe_delta_args *a, uint32_t t, uint32_t first, uint32_t n)
{
    const float *q = a->q + t * a->qk_stride;
    const float *k = a->k + t * a->qk_stride;
    float *state = a->state + first;
    l16 decay = l16_set(a->decay[t]), sum = l16_zero();
    for (uint32_t i = 0; i < a->key_dim; i++)
        sum = l16_fma(l16_load_part(state + (size_t)i * a->n, n), l16_set(k[i]), sum);
    l16 v = l16_load_part(a->v + t * a->v_stride + first, n);
    l16 d = l16_mul(l16_set(a->beta[t]), l16_fma(l16_negate(decay), sum, v));
    sum = l16_zero();
    for (uint32_t i = 0; i < a->key_dim; i++) {
        float *at = state + (size_t)i * a->n;
        l16 s = l16_fma(l16_set(k[i]), d, l16_mul(decay, l16_load_part(at, n)));
        l16_store_part(at, s, n);
        sum = l16_fma(s, l16_set(q[i]), sum);
    }
    if (t >= a->n_silent)
        l16_store_part(a->out + (t - a->n_silent) * a->out_stride + first, sum, n);
}

static void delta_columns_lanes(const moe_delta_args *a)
{
    for (uint32_t t = 0; t < a->n_tokens; t++) {
        uint32_t first = 0;
        for (; first + 64 <= a->n; first += 64)
            take_chunks(a, t, first, 4);
        for (; first + 16 <= a->n; first += 16)
            take_chunks(a, t, first, 1);
        if (first < a->n)
            take_part(a, t, first, a->n - first);
    }
}

#endif
