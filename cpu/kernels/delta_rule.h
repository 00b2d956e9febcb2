/* SPDX-License-Identifier: MIT */
/* The arithmetic of layers with a recurrent state: the short convolution and the gated delta rule.
 *
 * Arithmetic contract, as in vector_ops.h: reference, AVX2, AVX-512 and CUDA give the same bits.
 * Tokens are taken one after the other, and what a token does to a column of the state depends on
 * no other column. Chunks of a prompt, threads and blocks of columns therefore change no bit. */
#ifndef MOE_CPU_DELTA_RULE_H
#define MOE_CPU_DELTA_RULE_H

#include <stddef.h>
#include <stdint.h>

/* Columns that the kernels take at once; a block of so many is fastest. */
#define MOE_DELTA_COLUMNS 64u
/* Sizes up to these are supported. */
#define MOE_DELTA_MAX_KEY_DIM   256u
#define MOE_DELTA_MAX_VALUE_DIM 256u
#define MOE_DELTA_MAX_TAPS      8u

/* log(1 + exp(x)) in double precision, then rounded; x itself above 20. With u = moe_exp(x), up to
 * 1 the series of 2 atanh(u / (2 + u)), above with 1 + u = m * 2^e, m in [sqrt(1/2), sqrt(2)), e *
 * ln 2 more. The series has MOE_SOFTPLUS_TERMS terms, summed from the smallest. */
#define MOE_SOFTPLUS_TERMS 12
float moe_softplus(float x);

/* Some columns of one head's state, over some tokens. For each token and column, S being the
 * column, from +0 and i ascending:
 *    r = fmaf(S_i, k_i, r);   d = beta * fmaf(-decay, r, v)
 *    S_i = fmaf(k_i, d, decay * S_i);   o = fmaf(S_i, q_i, o) */
typedef struct moe_delta_args {
    uint32_t key_dim;
    uint32_t n; /* columns: 1..MOE_DELTA_COLUMNS */
    uint32_t n_tokens;
    uint32_t n_silent; /* the first tokens, whose output is not wanted */
    const float *q, *k;
    size_t qk_stride; /* from token to token */
    const float *v;   /* the block's columns */
    size_t v_stride;
    const float *decay; /* [n_tokens] */
    const float *beta;  /* [n_tokens] */
    float *state;       /* [key_dim][n], in place */
    float *out;         /* of the first token that is not silent */
    size_t out_stride;
} moe_delta_args;

/* One token of the short convolution, followed by SiLU: c = fmaf(w, x, c) from +0 over the taps,
 * oldest first; y = c / (1 + exp(-c)). taps: [n_taps] vectors of n; weights: [n_taps][n]. */
typedef void (*moe_conv_silu_fn)(const float *const *taps, const float *weights, uint32_t n_taps,
                                 float *y, uint32_t n);
typedef void (*moe_delta_columns_fn)(const moe_delta_args *args);

void moe_conv_silu_c(const float *const *taps, const float *weights, uint32_t n_taps, float *y,
                     uint32_t n);
void moe_delta_columns_c(const moe_delta_args *args);

#endif
