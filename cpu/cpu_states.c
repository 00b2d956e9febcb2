/* SPDX-License-Identifier: MIT */
#include "cpu/cpu_states.h"

#include <string.h>

#include "cpu/cpu_convolution.h"

typedef struct states_job {
    const moe_cpu_states *d;
    uint32_t n_blocks; /* blocks into which a head's columns are divided */
} states_job;

static void copy_columns(const float *src, size_t src_stride, float *dst, size_t dst_stride,
                         uint32_t n, uint32_t n_rows)
{
    for (uint32_t r = 0; r < n_rows; r++) {
        memcpy(dst + r * dst_stride, src + r * src_stride, n * sizeof *dst);
    }
}

/* Runs tokens `first` .. first + n_tokens - 1 of a sequence whose rows begin at first_row, for the
 * columns of a head that begin at `column`. */
static void take_tokens(const moe_cpu_states *d, const moe_delta_sequence *s, const float *row,
                        uint32_t head, uint32_t column, uint32_t first, moe_delta_args *args)
{
    float decay[MOE_CPU_GATE_TOKENS], beta[MOE_CPU_GATE_TOKENS];
    moe_cpu_head at = d->head_at(d->rule, head);
    uint32_t silent = s->n_silent > first ? s->n_silent - first : 0;
    size_t out = (size_t)(first < s->n_silent ? 0 : first - s->n_silent) * args->out_stride;
    d->gates(d->rule, s, head, first, args->n_tokens, decay, beta);
    args->n_silent = silent < args->n_tokens ? silent : args->n_tokens;
    args->q = row + at.q;
    args->k = row + at.k;
    args->v = row + at.v + column;
    args->skip = at.skip;
    args->decay = d->decay_of_rows ? row + at.decay : decay;
    args->decay_stride = d->n_channels;
    args->beta = beta;
    args->out = s->out != NULL ? s->out + out + (size_t)head * d->value_dim + column : NULL;
    d->columns(args);
}

static void advance_columns(const moe_cpu_states *d, const moe_delta_sequence *s, size_t first_row,
                            uint32_t head, uint32_t column, uint32_t n)
{
    size_t place = (size_t)head * d->key_dim * d->value_dim + column;
    const uint32_t step = MOE_CPU_GATE_TOKENS;
    _Alignas(64) float state[MOE_DELTA_MAX_KEY_DIM * MOE_DELTA_COLUMNS];
    moe_delta_args args = {.key_dim = d->key_dim,
                           .n = n,
                           .qk_stride = d->n_channels,
                           .v_stride = d->n_channels,
                           .state = state,
                           .out_stride = (size_t)d->n_head * d->value_dim};
    if (s->from != NULL) {
        copy_columns(s->from + place, d->value_dim, state, n, n, d->key_dim);
    } else {
        memset(state, 0, (size_t)d->key_dim * n * sizeof *state);
    }
    for (uint32_t t = 0; t < s->n_tokens; t += step) {
        args.n_tokens = s->n_tokens - t < step ? s->n_tokens - t : step;
        take_tokens(d, s, d->convolved + (first_row + t) * d->n_channels, head, column, t, &args);
    }
    if (s->to != NULL) {
        copy_columns(state, n, s->to + place, d->value_dim, n, d->key_dim);
    }
}

static void advance_range(void *context, uint32_t begin, uint32_t end)
{
    const states_job *job = context;
    const moe_cpu_states *d = job->d;
    uint32_t n_parts = d->n_head * job->n_blocks;
    for (uint32_t task = begin; task < end; task++) {
        size_t first_row;
        const moe_delta_sequence *s = moe_cpu_sequence_of(d->sequences, n_parts, task, &first_row);
        uint32_t part = task % n_parts;
        uint32_t column = part % job->n_blocks * MOE_DELTA_COLUMNS;
        uint32_t n = d->value_dim - column;
        advance_columns(d, s, first_row, part / job->n_blocks, column,
                        n < MOE_DELTA_COLUMNS ? n : MOE_DELTA_COLUMNS);
    }
}

void moe_cpu_advance_states(const moe_cpu_states *d)
{
    states_job job = {d, (d->value_dim + MOE_DELTA_COLUMNS - 1) / MOE_DELTA_COLUMNS};
    moe_cpu_for(d->cpu, d->n_sequences * d->n_head * job.n_blocks, 2, advance_range, &job);
}
