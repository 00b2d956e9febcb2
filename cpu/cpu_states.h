/* SPDX-License-Identifier: MIT */
/* Updates states of heads token by token, for any of the rules. A task is some columns of one head
 * of one sequence. Its part of the state stays in the first-level cache while the task goes through
 * all tokens. So a prompt reads the state from memory once. */
#ifndef MOE_CPU_STATES_H
#define MOE_CPU_STATES_H

#include "cpu/cpu_internal.h"

/* Tokens whose gates are computed together, at most. */
#define MOE_CPU_GATE_TOKENS 64u

/* Where a head's inputs are in a row of the convolution, in floats. */
typedef struct moe_cpu_head {
    size_t q, k, v;
    size_t decay; /* with decay_of_rows: where the head's decays are in a row of the scratch */
    float skip;
} moe_cpu_head;

typedef struct moe_cpu_states {
    moe_cpu_device *cpu;
    uint32_t n_head, key_dim, value_dim;
    uint32_t n_channels;    /* of a row of the scratch */
    const float *convolved; /* scratch, [tokens of all sequences][n_channels] */
    const moe_delta_sequence *sequences;
    uint32_t n_sequences;
    moe_delta_columns_fn columns;
    bool decay_of_rows; /* the scratch has decays, one for each row of a head's state */
    moe_cpu_head (*head_at)(const void *rule, uint32_t head);
    /* Computes the gates of a head for n tokens from `first` on. With decay_of_rows it does not
     * compute decays. */
    void (*gates)(const void *rule, const moe_delta_sequence *s, uint32_t head, uint32_t first,
                  uint32_t n, float *decay, float *beta);
    const void *rule;
} moe_cpu_states;

void moe_cpu_advance_states(const moe_cpu_states *states);

#endif
