/* SPDX-License-Identifier: MIT */
/* The part of the device contract for layers with a recurrent state (moe_device_ops.delta_rule). */
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
    /* A row of gates has for each group of so many heads first their b, then their a. */
    uint32_t gate_group;
    const float *conv;    /* device, [channels][conv_kernel], the oldest token's weight first */
    const float *decay;   /* device, [n_head], negative */
    const float *dt_bias; /* device, [n_head] */
    float *convolved;     /* device, scratch: [tokens of all sequences][channels] */
    const moe_delta_sequence *sequences; /* host */
    uint32_t n_sequences;
} moe_delta_rule;

#endif
