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
    /* Device: the rows of tokens before the convolution, token t's at mixed + t * mixed_stride:
     * queries of all key heads, then their keys, then the heads' values. */
    const float *mixed;
    size_t mixed_stride;
    const float *gates; /* device, rows of [2 * n_head] likewise: see moe_delta_rule.gate_group */
    size_t gates_stride;
    uint32_t n_tokens;
    uint32_t n_silent; /* the output of the first n_silent tokens is not wanted */
    /* Device: the state before the first token (moe_recurrence); NULL: a sequence begins. */
    const float *from;
    /* Device, out: the state after the last token; NULL: not wanted. Must differ from `from`. */
    float *to;
    float *out; /* device, [n_tokens - n_silent][n_head * value_dim]; NULL: not wanted */
} moe_delta_sequence;

/* One layer's short convolution and gated delta rule, by the contract of
 * cpu/kernels/delta_rule.h. Head h takes queries and keys of a key head, after SiLU:
 *    k = k / sqrt(k.k + 1e-6), computed as k * (1 / sqrt(..)); q likewise, then times
 *    1 / sqrt(key_dim) (the two factors are multiplied first)
 *    beta = 1 / (1 + exp(-b));  decay = exp(decay[h] * softplus(a + dt_bias[h])) */
typedef struct moe_delta_rule {
    uint32_t n_head;
    uint32_t n_key_head; /* divides n_head */
    uint32_t key_dim;
    uint32_t value_dim;
    uint32_t conv_kernel;
    bool tiled; /* head h has key head h % n_key_head; otherwise h / (n_head / n_key_head) */
    /* A row of gates has, for each group of gate_group heads, first their b values, then their a
     * values. */
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
    uint32_t n; /* channels; also the floats of a row of `out` */
    uint32_t conv_kernel;
    uint32_t step;     /* how many tokens apart the weights' inputs are; 0 stands for 1 */
    const float *conv; /* device, [n][conv_kernel], the oldest token's weight first */
    const float *bias; /* device, [n], or NULL */
    bool silu;
    /* Where the tail begins in a state, in floats; what is before it is not written. */
    size_t tail_at;
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
    /* Device, [n_head], negative; with decay_bound only its absolute value counts. */
    const float *decay;
    float decay_bound;    /* a negative bound of the decays' logarithms; 0: none */
    const float *dt_bias; /* device, [n_head * dim] */
    float *convolved;     /* device, scratch: [tokens of all sequences][4 * n_head * dim] */
    const moe_delta_sequence *sequences; /* host */
    uint32_t n_sequences;
} moe_channel_rule;

/* One layer's selective scan (Mamba-1), by the contract of cpu/kernels/delta_rule.h. The
 * convolution (moe_short_conv) and the products of its output have been computed before. A state is
 * [n_rows][n], followed by the convolution's tail, which is not written. v, dt, k and q have the
 * rows of all sequences' tokens; the sequences' `mixed` and `gates` are not used. */
typedef struct moe_selective_scan {
    uint32_t n;                          /* channels; also the floats of a row of `out` */
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
