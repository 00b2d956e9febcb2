/* SPDX-License-Identifier: MIT */
/* The short convolution and the rules of states on the sixteen lanes of lanes16_*.h, which is
 * included first. This is the body of one file for each instruction set; no other file includes it.
 *
 * A lane is a column of the state. Four chunks of sixteen columns are updated together, row by row:
 * their sums do not wait for one another, and they share each row's key and query. */
#ifndef MOE_X86_DELTA_LANES_H
#define MOE_X86_DELTA_LANES_H

#include "cpu/kernels/delta_rule.h"
#include "cpu/x86/always_inline.h"

/* Unrolls a loop whose bounds are constant once inlined, so that its accumulators are registers. */
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 4")
#endif

static inline l16 silu_of(l16 x)
{
    return l16_div(x, l16_add(l16_set(1.0f), l16_exp(l16_negate(x))));
}

static void convolve_lanes(const moe_conv_args *a)
{
    const float *w = a->weights, *bias = a->bias;
    uint32_t whole = a->n & ~15u, rest = a->n & 15u;
    for (uint32_t i = 0; i < whole; i += 16) {
        l16 c = bias != NULL ? l16_load(bias + i) : l16_zero();
        for (uint32_t t = 0; t < a->n_taps; t++)
            c = l16_fma(l16_load(w + (size_t)t * a->n + i), l16_load(a->taps[t] + i), c);
        l16_store(a->y + i, a->silu ? silu_of(c) : c);
    }
    if (rest > 0) {
        l16 c = bias != NULL ? l16_load_part(bias + whole, rest) : l16_zero();
        for (uint32_t t = 0; t < a->n_taps; t++)
            c = l16_fma(l16_load_part(w + (size_t)t * a->n + whole, rest),
                        l16_load_part(a->taps[t] + whole, rest), c);
        l16_store_part(a->y + whole, a->silu ? silu_of(c) : c, rest);
    }
}

/* log(1 + e^x), with the same terms of the series as the reference (moe_softplus). */
static inline l16 softplus_of(l16 x)
{
    l16 u = l16_exp(l16_negate(l16_max(x, l16_negate(x))));
    l16 s = l16_div(u, l16_add(l16_set(2.0f), u));
    l16 z = l16_mul(s, s), p = l16_set(1.0f / (2 * MOE_DECAY_TERMS - 1));
    for (int k = MOE_DECAY_TERMS - 2; k >= 0; k--)
        p = l16_fma(p, z, l16_set(1.0f / (float)(2 * k + 1)));
    return l16_add(l16_max(x, l16_zero()), l16_mul(l16_add(s, s), p));
}

static inline l16 decay_of(l16 x, l16 rate)
{
    return l16_exp(l16_mul(rate, softplus_of(x)));
}

static void row_decays_lanes(const float *f, const float *dt_bias, float rate, float *decay,
                             uint32_t n)
{
    uint32_t whole = n & ~15u, rest = n & 15u;
    l16 rates = l16_set(rate);
    for (uint32_t i = 0; i < whole; i += 16)
        l16_store(decay + i, decay_of(l16_add(l16_load(f + i), l16_load(dt_bias + i)), rates));
    if (rest > 0) {
        l16 x = l16_add(l16_load_part(f + whole, rest), l16_load_part(dt_bias + whole, rest));
        l16_store_part(decay + whole, decay_of(x, rates), rest);
    }
}

static inline l16 bounded_decay_of(l16 x, l16 rate, l16 bound)
{
    l16 e = l16_exp(l16_negate(l16_mul(rate, x)));
    return l16_exp(l16_div(bound, l16_add(l16_set(1.0f), e)));
}

static void bounded_decays_lanes(const float *f, const float *dt_bias, float rate, float bound,
                                 float *decay, uint32_t n)
{
    uint32_t whole = n & ~15u, rest = n & 15u;
    l16 rates = l16_set(rate), bounds = l16_set(bound);
    for (uint32_t i = 0; i < whole; i += 16) {
        l16 x = l16_add(l16_load(f + i), l16_load(dt_bias + i));
        l16_store(decay + i, bounded_decay_of(x, rates, bounds));
    }
    if (rest > 0) {
        l16 x = l16_add(l16_load_part(f + whole, rest), l16_load_part(dt_bias + whole, rest));
        l16_store_part(decay + whole, bounded_decay_of(x, rates, bounds), rest);
    }
}

/* Which of the three rules; a constant once inlined. */
typedef enum rule_kind { RULE_DELTA, RULE_CHANNELS, RULE_SPACE } rule_kind;

/* Loads the chunk of columns at `at`. rest > 0: the chunk has only `rest` columns, and the other
 * lanes are 0. */
MOE_INLINE l16 load_chunk(const float *at, uint32_t rest)
{
    return rest > 0 ? l16_load_part(at, rest) : l16_load(at);
}

MOE_INLINE void store_chunk(float *at, l16 x, uint32_t rest)
{
    if (rest > 0)
        l16_store_part(at, x, rest);
    else
        l16_store(at, x);
}

/* Runs one token for the chunks of columns from `first` on; rest > 0: there is one chunk, of `rest`
 * columns. */
MOE_INLINE void take_chunks(const moe_delta_args *a, rule_kind rule, uint32_t t, uint32_t first,
                            uint32_t n_chunks, uint32_t rest)
{
    const float *q = a->q + t * a->qk_stride;
    const float *k = a->k + t * a->qk_stride;
    const float *v = a->v + t * a->v_stride + first;
    const float *decays = a->decay + (rule == RULE_CHANNELS ? t * a->decay_stride : t);
    float *state = a->state + first;
    l16 sum[4], d[4];
    l16 decay = l16_set(decays[0]), beta = l16_set(a->beta[t]);
    l16 minus = l16_negate(decay);
    UNROLL
    for (uint32_t c = 0; c < n_chunks; c++)
        sum[c] = l16_zero();
    for (uint32_t i = 0; i < a->key_dim && rule != RULE_SPACE; i++) {
        l16 key = l16_set(k[i]);
        l16 decay_i = rule == RULE_CHANNELS ? l16_set(decays[i]) : decay;
        UNROLL
        for (uint32_t c = 0; c < n_chunks; c++) {
            l16 s = load_chunk(state + (size_t)i * a->n + 16 * c, rest);
            sum[c] = l16_fma(rule == RULE_CHANNELS ? l16_mul(decay_i, s) : s, key, sum[c]);
        }
    }
    UNROLL
    for (uint32_t c = 0; c < n_chunks; c++) {
        l16 value = load_chunk(v + 16 * c, rest);
        d[c] = rule == RULE_SPACE      ? value
               : rule == RULE_CHANNELS ? l16_sub(value, sum[c])
                                       : l16_fma(minus, sum[c], value);
        d[c] = l16_mul(beta, d[c]);
        sum[c] = l16_zero();
    }
    for (uint32_t i = 0; i < a->key_dim; i++) {
        l16 key = l16_set(k[i]), query = l16_set(q[i]);
        l16 decay_i = rule == RULE_CHANNELS ? l16_set(decays[i]) : decay;
        UNROLL
        for (uint32_t c = 0; c < n_chunks; c++) {
            float *at = state + (size_t)i * a->n + 16 * c;
            l16 s = l16_fma(key, d[c], l16_mul(decay_i, load_chunk(at, rest)));
            store_chunk(at, s, rest);
            sum[c] = l16_fma(s, query, sum[c]);
        }
    }
    for (uint32_t c = 0; c < n_chunks && t >= a->n_silent; c++) {
        float *out = a->out + (t - a->n_silent) * a->out_stride + first + 16 * c;
        l16 value = load_chunk(v + 16 * c, rest);
        store_chunk(out, rule == RULE_SPACE ? l16_fma(l16_set(a->skip), value, sum[c]) : sum[c],
                    rest);
    }
}

MOE_INLINE void take_tokens(const moe_delta_args *a, rule_kind rule)
{
    for (uint32_t t = 0; t < a->n_tokens; t++) {
        uint32_t first = 0;
        for (; first + 64 <= a->n; first += 64)
            take_chunks(a, rule, t, first, 4, 0);
        for (; first + 16 <= a->n; first += 16)
            take_chunks(a, rule, t, first, 1, 0);
        if (first < a->n)
            take_chunks(a, rule, t, first, 1, a->n - first);
    }
}

static void delta_columns_lanes(const moe_delta_args *a)
{
    take_tokens(a, RULE_DELTA);
}

static void channel_columns_lanes(const moe_delta_args *a)
{
    take_tokens(a, RULE_CHANNELS);
}

static void space_columns_lanes(const moe_delta_args *a)
{
    take_tokens(a, RULE_SPACE);
}

/* Runs one token for the chunks of channels from `first` on, as take_chunks() does. */
MOE_INLINE void scan_chunks(const moe_scan_args *a, uint32_t t, uint32_t first, uint32_t n_chunks,
                            uint32_t rest)
{
    const float *q = a->q + (size_t)t * a->n_rows, *k = a->k + (size_t)t * a->n_rows;
    l16 step[4], value[4], d[4], sum[4];
    UNROLL
    for (uint32_t c = 0; c < n_chunks; c++) {
        size_t at = t * a->stride + first + 16 * c;
        l16 x =
            l16_add(load_chunk(a->dt + at, rest), load_chunk(a->dt_bias + first + 16 * c, rest));
        step[c] = softplus_of(x);
        value[c] = load_chunk(a->v + at, rest);
        d[c] = l16_mul(step[c], value[c]);
        sum[c] = l16_zero();
    }
    for (uint32_t i = 0; i < a->n_rows; i++) {
        l16 key = l16_set(k[i]), query = l16_set(q[i]);
        size_t row = (size_t)i * a->n + first;
        UNROLL
        for (uint32_t c = 0; c < n_chunks; c++) {
            float *at = a->state + row + 16 * c;
            l16 rate = load_chunk(a->rate + row + 16 * c, rest);
            l16 decay = l16_exp(l16_mul(rate, step[c]));
            l16 s = l16_fma(key, d[c], l16_mul(decay, load_chunk(at, rest)));
            store_chunk(at, s, rest);
            sum[c] = l16_fma(s, query, sum[c]);
        }
    }
    for (uint32_t c = 0; c < n_chunks && t >= a->n_silent; c++) {
        l16 skip = load_chunk(a->skip + first + 16 * c, rest);
        store_chunk(a->out + (t - a->n_silent) * a->out_stride + first + 16 * c,
                    l16_fma(skip, value[c], sum[c]), rest);
    }
}

static void scan_columns_lanes(const moe_scan_args *a)
{
    for (uint32_t t = 0; t < a->n_tokens; t++) {
        uint32_t first = 0;
        for (; first + 64 <= a->n; first += 64)
            scan_chunks(a, t, first, 4, 0);
        for (; first + 16 <= a->n; first += 16)
            scan_chunks(a, t, first, 1, 0);
        if (first < a->n)
            scan_chunks(a, t, first, 1, a->n - first);
    }
}

#endif
