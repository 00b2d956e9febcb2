/* SPDX-License-Identifier: MIT */
/* The short convolution with which recurrent layers begin, and its tail: the inputs of the last
 * tokens, which a state keeps for the next pass. */
#ifndef MOE_CPU_CONVOLUTION_H
#define MOE_CPU_CONVOLUTION_H

#include "cpu/cpu_internal.h"

/* Channels of one call, at most. */
#define MOE_CPU_CONV_CHANNELS 256u

typedef struct moe_cpu_convolution {
    moe_cpu_device *cpu;
    uint32_t n_channels; /* of a row */
    uint32_t n_taps;
    uint32_t step; /* tokens from one tap to the next; 0: 1 */
    bool silu;
    size_t tail_at; /* where the tail begins in a state, in floats */
} moe_cpu_convolution;

/* Some channels and their weights. */
typedef struct moe_cpu_channels {
    uint32_t first, n;
    const float *weights; /* [n][n_taps] */
    const float *bias;    /* [n], or NULL */
} moe_cpu_channels;

/* Writes tokens begin .. begin + n_tokens - 1 of a sequence to rows of out. */
void moe_cpu_convolve(const moe_cpu_convolution *c, const moe_delta_sequence *s,
                      const moe_cpu_channels *channels, uint32_t begin, uint32_t n_tokens,
                      float *out, size_t out_stride);
/* Writes these channels' tail to the state that the sequence keeps, if it keeps one. */
void moe_cpu_keep_tail(const moe_cpu_convolution *c, const moe_delta_sequence *s, uint32_t first,
                       uint32_t n);

/* Convolves the channels of a head for all tokens, and keeps the tail. Divides queries and keys by
 * their length, queries also by the root of their width (delta_ops.h). */
typedef enum moe_cpu_part { MOE_CPU_QUERY, MOE_CPU_KEY, MOE_CPU_VALUE } moe_cpu_part;

void moe_cpu_convolve_part(const moe_cpu_convolution *c, const moe_delta_sequence *s,
                           const moe_cpu_channels *channels, moe_cpu_part part, float *out,
                           size_t out_stride);

/* The sequence of a task, if each sequence has n_parts tasks. *first_row: how many rows all earlier
 * sequences have. */
const moe_delta_sequence *moe_cpu_sequence_of(const moe_delta_sequence *sequences, uint32_t n_parts,
                                              uint32_t task, size_t *first_row);

#endif
