/* SPDX-License-Identifier: MIT */
/* The part of the device contract for layers with a recurrent state: moe_device_ops.delta_rule,
 * short_conv, state_space, channel_rule and selective_scan. */
#ifndef MOE_DEVICE_DELTA_OPS_H
#define MOE_DEVICE_DELTA_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Some tokens of one sequence. */
typedef struct moe_delta_sequence {
    const float *mixed; /* device: token t's queries of all key heads, then their keys, then the
                         * heads' values, at mixed + t * mixed_stride, before the convolution */
    size_t mixed_stride;
    const float *gates; /* device, likewise [2 * n_head]: see moe_delta_rule.gate_group */
    size_t gates_stride;
    uint32_t n_tokens;
    uint32_t n_silent; /* the first tokens, whose output is not wanted */
    const float *from; /* device: the state before (moe_recurrence); NULL: a sequence begins */
    float *to;         /* device, out: the state after; NULL: not wanted. Never `from`. */
    float *out;        /* device, [n_tokens - n_silent][n_head * value_dim]; or NULL for none */
} moe_delta_sequence;

/* One layer's short convolution and gated delta rule, by the contract of
 * cpu/kernels/delta_rule.h. Head h takes queries and keys of a key head, after SiLU:
 *    k = k / sqrt(k.k + 1e-6), as k * (1 / sqrt(..)); q likewise, times 1 / sqrt(key_dim) (the two
 *    factors are multiplied first)
 *    beta = 1 / (1 + exp(-b));  decay = exp(decay[h] * softplus(a + dt_bias[h])) */
typedef struct moe_delta_rule {
    uint32_t n_head;
    uint32_t n_key_head; /* divides n_head */
    uint32_t key_dim;
    uint32_t value_dim;
    uint32_t conv_kernel;
    bool tiled; /* head h has key head h % n_key_head, else h / (n_head / n_key_head) */
    /* A row of gates has, for each group of gate_group heads, first their b, then their a. */
    uint32_t gate_group;
    const float *conv;    /* device, [channels][conv_kernel], the oldest token's weight first */
    const float *decay;   /* device, [n_head], negative */
    const float *dt_bias; /* device, [n_head] */
    float *convolved;     /* device, scratch: [tokens of all sequences][channels] */
    const moe_delta_sequence *sequences; /* host */
    uint32_t n_sequences;
} moe_delta_rule;

/* A short convolution by the contract of cpu/kernels/delta_rule.h. It does not use the sequences'
 * `gates`. */
typedef struct moe_short_conv {
    uint32_t n; /* channels; of a row of `out` as well */
    uint32_t conv_kernel;
    uint32_t step;     /* tokens from one weight to the next; 0: 1 */
    const float *conv; /* device, [n][conv_kernel], the oldest token's weight first */
    const float *bias; /* device, [n], or NULL */
    bool silu;
    size_t tail_at; /* floats of a state before its tail; of them nothing is written */
    const moe_delta_sequence *sequences; /* host */
    uint32_t n_sequences;
} moe_short_conv;

/* One layer's short convolution and state space (Mamba-2), by the contract of
 * cpu/kernels/delta_rule.h. A row before the convolution has the heads' values, then the keys of
 * all groups, then their queries; head h has those of group h / (n_head / n_group). A row of gates
 * has the time steps of the heads:
 *    beta = softplus(dt + dt_bias[h]);  decay = exp(decay[h] * beta) */
typedef struct moe_state_space {
    uint32_t n_head;
    uint32_t n_group; /* divides n_head */
    uint32_t key_dim; /* the size of the state */
    uint32_t value_dim;
    uint32_t conv_kernel;
    const float *conv;      /* device, [channels][conv_kernel], the oldest token's weight first */
    const float *conv_bias; /* device, [channels], or NULL */
    const float *decay;     /* device, [n_head], negative */
    const float *dt_bias;   /* device, [n_head] */
    const float *skip;      /* device, [n_head] */
    float *convolved;       /* device, scratch: [tokens of all sequences][channels] */
    const moe_delta_sequence *sequences; /* host */
    uint32_t n_sequences;
} moe_state_space;

/* One layer's short convolutions and delta rule with a decay for each row of a head's state (KDA),
 * by the contract of cpu/kernels/delta_rule.h. A row before the convolution has queries, keys and
 * values of all heads; queries and keys are normalised as in moe_delta_rule. A row of gates has the
 * heads' b, then f of all rows of all heads:
 *    beta = 1 / (1 + exp(-b));  decay by row_decays, with rate decay[h], or by bounded_decays */
typedef struct moe_channel_rule {
    uint32_t n_head;
    uint32_t dim; /* of keys and of values */
    uint32_t conv_kernel;
    const float *conv[3]; /* device, [n_head * dim][conv_kernel]: of queries, keys, values */
    const float *decay;   /* device, [n_head], negative; with a bound its size counts */
    float decay_bound;    /* of decays' logarithms, negative; 0: none */
    const float *dt_bias; /* device, [n_head * dim] */
    float *convolved;     /* device, scratch: [tokens of all sequences][4 * n_head * dim] */
    const moe_delta_sequence *sequences; /* host */
    uint32_t n_sequences;
} moe_channel_rule;

/* One layer's selective scan (Mamba-1), by the contract of cpu/kernels/delta_rule.h, behind its
 * convolution (moe_short_conv) and the products of what that put out. A state is [n_rows][n], and
 * behind it the convolution's tail, of which nothing is written. Rows are those of all sequences'
 * tokens; of the sequences, `mixed` and `gates` are not used. */
typedef struct moe_selective_scan {
    uint32_t n;                          /* channels; of a row of `out` as well */
    uint32_t n_rows;                     /* of a state */
    const float *decay;                  /* device, [n][n_rows], negative */
    const float *dt_bias;                /* device, [n] */
    const float *skip;                   /* device, [n] */
    const float *v, *dt;                 /* device, [tokens][n] */
    const float *k, *q;                  /* device, [tokens][n_rows] */
    const moe_delta_sequence *sequences; /* host */
    uint32_t n_sequences;
} moe_selective_scan;

#endif
