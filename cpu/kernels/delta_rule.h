/* SPDX-License-Identifier: MIT */
/* The arithmetic of layers with a recurrent state: the short convolution, the gated delta rule (one
 * decay for a head, or one for each row of its state), the state space of Mamba-2, and the
 * selective scan of Mamba-1.
 *
 * Arithmetic contract, as in vector_ops.h: reference, AVX2, AVX-512 and CUDA give the same bits.
 * Tokens are taken one after the other, and each column of the state is updated without the other
 * columns. So dividing a prompt into chunks, or columns among threads or blocks, changes no bit. */
#ifndef MOE_CPU_DELTA_RULE_H
#define MOE_CPU_DELTA_RULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Columns that the kernels take at once; a block of this size is fastest. */
#define MOE_DELTA_COLUMNS 64u
/* Sizes up to these are supported. */
#define MOE_DELTA_MAX_KEY_DIM   256u
#define MOE_DELTA_MAX_VALUE_DIM 256u
#define MOE_DELTA_MAX_TAPS      8u

/* log(1 + exp(x)) in double precision, then rounded; for x above 20 it is x. With u = moe_exp(x):
 * if u is at most 1, the result is the series of 2 atanh(u / (2 + u)). Else 1 + u = m * 2^e with m
 * in [sqrt(1/2), sqrt(2)), and the result is the series of log(m), plus e * ln 2. The series has
 * MOE_SOFTPLUS_TERMS terms, summed from the smallest. */
#define MOE_SOFTPLUS_TERMS 12
float moe_softplus(float x);

/* Decays of a state's rows: x = f + dt_bias; u = exp(-|x|); s = u / (2 + u); z = s * s;
 * p = MOE_DECAY_TERMS terms of z^k / (2 k + 1), one Horner chain by fmaf from the last;
 * decay = exp(rate * ((x > 0 ? x : 0) + (s + s) * p)), which is exp(rate * softplus(x)). */
#define MOE_DECAY_TERMS 8
typedef void (*moe_row_decays_fn)(const float *f, const float *dt_bias, float rate, float *decay,
                                  uint32_t n);
void moe_row_decays_c(const float *f, const float *dt_bias, float rate, float *decay, uint32_t n);
/* Decays whose logarithms have a lower bound, which is negative: decay = exp(bound / (1 +
 * exp(-(rate * x)))). */
typedef void (*moe_bounded_decays_fn)(const float *f, const float *dt_bias, float rate, float bound,
                                      float *decay, uint32_t n);
void moe_bounded_decays_c(const float *f, const float *dt_bias, float rate, float bound,
                          float *decay, uint32_t n);

/* Some columns of one head's state, over some tokens. For each token and each column S, where r and
 * o start at +0 and i ascends:
 *
 *    delta_columns:   r = fmaf(S_i, k_i, r);   d = beta * fmaf(-decay, r, v)
 *                     S_i = fmaf(k_i, d, decay * S_i);   o = fmaf(S_i, q_i, o)
 *    channel_columns: r = fmaf(decay_i * S_i, k_i, r);   d = beta * (v - r)
 *                     S_i = fmaf(k_i, d, decay_i * S_i);   o = fmaf(S_i, q_i, o)
 *    space_columns:   d = beta * v
 *                     S_i = fmaf(k_i, d, decay * S_i);   o = fmaf(S_i, q_i, o)
 *                     and in the end o = fmaf(skip, v, o) */
typedef struct moe_delta_args {
    uint32_t key_dim;
    uint32_t n; /* columns: 1..MOE_DELTA_COLUMNS */
    uint32_t n_tokens;
    uint32_t n_silent; /* this many first tokens write no output */
    const float *q, *k;
    size_t qk_stride; /* from token to token */
    const float *v;   /* the values of the block's columns */
    size_t v_stride;
    const float *decay;  /* [n_tokens]; for channel_columns [n_tokens] rows of key_dim */
    size_t decay_stride; /* for channel_columns */
    const float *beta;   /* [n_tokens] */
    float skip;          /* for space_columns */
    float *state;        /* [key_dim][n], in place */
    float *out;          /* of the first token that is not silent */
    size_t out_stride;
} moe_delta_args;

/* Some channels of a selective scan (Mamba-1), over some tokens. A channel is a column S of the
 * state. It has its own time step, and its own decay for each row. For each token and channel, x =
 * dt + dt_bias; u, s and p are as for decays of rows; o starts at +0 and i ascends:
 *    step = (x > 0 ? x : 0) + (s + s) * p;   d = step * v
 *    S_i = fmaf(k_i, d, exp(rate_i * step) * S_i);   o = fmaf(S_i, q_i, o)
 * and in the end o = fmaf(skip, v, o) */
typedef struct moe_scan_args {
    uint32_t n_rows; /* of the state, up to MOE_DELTA_MAX_KEY_DIM */
    uint32_t n;      /* channels: 1..MOE_DELTA_COLUMNS */
    uint32_t n_tokens;
    uint32_t n_silent;  /* as in moe_delta_args */
    const float *q, *k; /* [n_tokens][n_rows]: C and B of Mamba-1 */
    const float *v, *dt;
    size_t stride;               /* of v and dt, from token to token */
    const float *dt_bias, *skip; /* [n] */
    const float *rate;           /* [n_rows][n], negative */
    float *state;                /* [n_rows][n], in place */
    float *out;                  /* of the first token that is not silent */
    size_t out_stride;
} moe_scan_args;

/* One token of the short convolution. c starts at the bias, or at +0; then c = fmaf(w, x, c) over
 * the taps, oldest first. y = c, or with silu y = c / (1 + exp(-c)). */
typedef struct moe_conv_args {
    const float *const *taps; /* [n_taps] vectors of n */
    const float *weights;     /* [n_taps][n] */
    const float *bias;        /* [n], or NULL */
    uint32_t n_taps;
    uint32_t n;
    bool silu;
    float *y;
} moe_conv_args;

typedef void (*moe_convolve_fn)(const moe_conv_args *args);
typedef void (*moe_delta_columns_fn)(const moe_delta_args *args);
typedef void (*moe_scan_columns_fn)(const moe_scan_args *args);

void moe_convolve_c(const moe_conv_args *args);
void moe_delta_columns_c(const moe_delta_args *args);
void moe_channel_columns_c(const moe_delta_args *args);
void moe_space_columns_c(const moe_delta_args *args);
void moe_scan_columns_c(const moe_scan_args *args);

#endif
