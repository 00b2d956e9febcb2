/* SPDX-License-Identifier: MIT */
/* The gated delta rule in two rounds of tasks. First the short convolution, where a task is one
 * head's queries, keys or values of one sequence; then the state, where a task is some columns of
 * one head of one sequence. The task has its part of the state in the first-level cache while it
 * goes through all tokens, so a prompt moves the state from memory once. */
#include <math.h>
#include <string.h>

#include "cpu/cpu_internal.h"
#include "runtime/base/moe_assert.h"

/* Tokens whose gates are computed together. */
#define GATE_TOKENS 64u
#define NORM_EPS    1e-6f

typedef struct delta_job {
    moe_cpu_device *cpu;
    const moe_delta_rule *d;
    uint32_t n_channels;
    uint32_t n_parts; /* tasks of a sequence in this round */
} delta_job;

static uint32_t channels_of(const moe_delta_rule *d)
{
    return 2 * d->n_key_head * d->key_dim + d->n_head * d->value_dim;
}

/* Where the sequence's tail is in a state; NULL: the sequence begins here. */
static const float *tail_of(const moe_delta_rule *d, const float *state)
{
    return state == NULL ? NULL : state + (size_t)d->n_head * d->key_dim * d->value_dim;
}

/* The n channels from `first` on of the token `back` before the sequence's first one. */
static const float *before(const delta_job *job, const moe_delta_sequence *s, uint32_t back,
                           uint32_t first)
{
    static const float zeros[MOE_DELTA_MAX_KEY_DIM > MOE_DELTA_MAX_VALUE_DIM
                                 ? MOE_DELTA_MAX_KEY_DIM
                                 : MOE_DELTA_MAX_VALUE_DIM];
    const float *tail = tail_of(job->d, s->from);
    size_t row = job->d->conv_kernel - 1 - back;
    return tail == NULL ? zeros : tail + row * job->n_channels + first;
}

/* ... of token `at` of the sequence, which may be one before its first. */
static const float *token_at(const delta_job *job, const moe_delta_sequence *s, int64_t at,
                             uint32_t first)
{
    return at < 0 ? before(job, s, (uint32_t)-at, first)
                  : s->mixed + (size_t)at * s->mixed_stride + first;
}

/* The tail after the sequence: its last tokens before the convolution. */
static void keep_tail(const delta_job *job, const moe_delta_sequence *s, uint32_t first, uint32_t n)
{
    uint32_t rows = job->d->conv_kernel - 1;
    float *tail = s->to + (size_t)job->d->n_head * job->d->key_dim * job->d->value_dim;
    for (uint32_t r = 0; r < rows; r++) {
        int64_t at = (int64_t)s->n_tokens - rows + r;
        memcpy(tail + (size_t)r * job->n_channels + first, token_at(job, s, at, first),
               n * sizeof *tail);
    }
}

/* Queries and keys are divided by their length, queries also by the root of theirs. */
static void normalise(const delta_job *job, float *x, bool query)
{
    const moe_delta_rule *d = job->d;
    const moe_vector_kernels *vector = &job->cpu->vector;
    float inv = 1.0f / sqrtf(vector->dot(x, x, d->key_dim) + NORM_EPS);
    vector->scale(query ? inv * (1.0f / sqrtf((float)d->key_dim)) : inv, x, d->key_dim);
}

/* Part p of a sequence: queries of the key heads, then their keys, then values of the heads. */
static void convolve_part(const delta_job *job, const moe_delta_sequence *s, size_t first_row,
                          uint32_t p)
{
    const moe_delta_rule *d = job->d;
    uint32_t n_keys = 2 * d->n_key_head;
    bool key = p < n_keys;
    uint32_t n = key ? d->key_dim : d->value_dim;
    uint32_t first = key ? p * n : n_keys * d->key_dim + (p - n_keys) * n;
    float weights[MOE_DELTA_MAX_TAPS * MOE_DELTA_MAX_KEY_DIM];
    _Static_assert(MOE_DELTA_MAX_VALUE_DIM <= MOE_DELTA_MAX_KEY_DIM, "weights have room for both");
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t t = 0; t < d->conv_kernel; t++) {
            weights[t * n + i] = d->conv[(size_t)(first + i) * d->conv_kernel + t];
        }
    }
    for (uint32_t t = 0; t < s->n_tokens; t++) {
        const float *taps[MOE_DELTA_MAX_TAPS];
        float *y = d->convolved + (first_row + t) * job->n_channels + first;
        for (uint32_t i = 0; i < d->conv_kernel; i++) {
            taps[i] = token_at(job, s, (int64_t)t + i - (d->conv_kernel - 1), first);
        }
        job->cpu->vector.conv_silu(taps, weights, d->conv_kernel, y, n);
        if (key) {
            normalise(job, y, p < d->n_key_head);
        }
    }
    if (s->to != NULL) {
        keep_tail(job, s, first, n);
    }
}

/* The sequence of a task, and the row of `convolved` where it begins. */
static const moe_delta_sequence *sequence_of(const delta_job *job, uint32_t task, size_t *first_row)
{
    uint32_t at = task / job->n_parts;
    *first_row = 0;
    for (uint32_t i = 0; i < at; i++) {
        *first_row += job->d->sequences[i].n_tokens;
    }
    return &job->d->sequences[at];
}

static void convolve_range(void *context, uint32_t begin, uint32_t end)
{
    const delta_job *job = context;
    for (uint32_t task = begin; task < end; task++) {
        size_t first_row;
        const moe_delta_sequence *s = sequence_of(job, task, &first_row);
        convolve_part(job, s, first_row, task % job->n_parts);
    }
}

/* Decay and beta of a head for tokens from `first` on. */
static void compute_gates(const moe_delta_rule *d, const moe_delta_sequence *s, uint32_t head,
                          uint32_t first, uint32_t n, float *decay, float *beta)
{
    uint32_t group = d->gate_group;
    uint32_t at = head / group * 2 * group + head % group;
    for (uint32_t t = 0; t < n; t++) {
        const float *gates = s->gates + (size_t)(first + t) * s->gates_stride;
        beta[t] = 1.0f / (1.0f + moe_exp(-gates[at]));
        decay[t] = moe_exp(d->decay[head] * moe_softplus(gates[at + group] + d->dt_bias[head]));
    }
}

static void copy_columns(const float *src, size_t src_stride, float *dst, size_t dst_stride,
                         uint32_t n, uint32_t n_rows)
{
    for (uint32_t r = 0; r < n_rows; r++) {
        memcpy(dst + r * dst_stride, src + r * src_stride, n * sizeof *dst);
    }
}

/* Columns first .. first + n - 1 of a head. */
static void advance_columns(const delta_job *job, const moe_delta_sequence *s, size_t first_row,
                            uint32_t head, uint32_t first, uint32_t n)
{
    const moe_delta_rule *d = job->d;
    uint32_t key_head = d->tiled ? head % d->n_key_head : head / (d->n_head / d->n_key_head);
    size_t place = (size_t)head * d->key_dim * d->value_dim + first;
    float decay[GATE_TOKENS], beta[GATE_TOKENS];
    _Alignas(64) float state[MOE_DELTA_MAX_KEY_DIM * MOE_DELTA_COLUMNS];
    if (s->from != NULL) {
        copy_columns(s->from + place, d->value_dim, state, n, n, d->key_dim);
    } else {
        memset(state, 0, (size_t)d->key_dim * n * sizeof *state);
    }
    for (uint32_t t = 0; t < s->n_tokens; t += GATE_TOKENS) {
        uint32_t n_now = s->n_tokens - t < GATE_TOKENS ? s->n_tokens - t : GATE_TOKENS;
        uint32_t silent = s->n_silent > t ? s->n_silent - t : 0;
        const float *row = d->convolved + (first_row + t) * job->n_channels;
        size_t out = (size_t)(t < s->n_silent ? 0 : t - s->n_silent) * d->n_head * d->value_dim;
        size_t keys = (size_t)d->n_key_head * d->key_dim;
        compute_gates(d, s, head, t, n_now, decay, beta);
        moe_delta_args args = {.key_dim = d->key_dim,
                               .n = n,
                               .n_tokens = n_now,
                               .n_silent = silent < n_now ? silent : n_now,
                               .q = row + (size_t)key_head * d->key_dim,
                               .k = row + keys + (size_t)key_head * d->key_dim,
                               .qk_stride = job->n_channels,
                               .v = row + 2 * keys + (size_t)head * d->value_dim + first,
                               .v_stride = job->n_channels,
                               .decay = decay,
                               .beta = beta,
                               .state = state,
                               .out_stride = (size_t)d->n_head * d->value_dim};
        args.out = s->out != NULL ? s->out + out + (size_t)head * d->value_dim + first : NULL;
        job->cpu->vector.delta_columns(&args);
    }
    if (s->to != NULL) {
        copy_columns(state, n, s->to + place, d->value_dim, n, d->key_dim);
    }
}

static void advance_range(void *context, uint32_t begin, uint32_t end)
{
    const delta_job *job = context;
    uint32_t n_blocks = job->n_parts / job->d->n_head;
    for (uint32_t task = begin; task < end; task++) {
        size_t first_row;
        const moe_delta_sequence *s = sequence_of(job, task, &first_row);
        uint32_t part = task % job->n_parts;
        uint32_t first = part % n_blocks * MOE_DELTA_COLUMNS;
        uint32_t n = job->d->value_dim - first;
        advance_columns(job, s, first_row, part / n_blocks, first,
                        n < MOE_DELTA_COLUMNS ? n : MOE_DELTA_COLUMNS);
    }
}

int moe_cpu_delta_rule(moe_device *device, const moe_delta_rule *rule, moe_error *err)
{
    (void)err;
    moe_cpu_device *cpu = moe_cpu_device_of(device);
    MOE_ASSERT(rule->key_dim > 0 && rule->key_dim <= MOE_DELTA_MAX_KEY_DIM);
    MOE_ASSERT(rule->value_dim > 0 && rule->value_dim <= MOE_DELTA_MAX_VALUE_DIM);
    MOE_ASSERT(rule->conv_kernel > 0 && rule->conv_kernel <= MOE_DELTA_MAX_TAPS);
    MOE_ASSERT(rule->n_key_head > 0 && rule->n_head % rule->n_key_head == 0);
    MOE_ASSERT(rule->gate_group > 0 && rule->n_head % rule->gate_group == 0);
    for (uint32_t i = 0; i < rule->n_sequences; i++) {
        const moe_delta_sequence *s = &rule->sequences[i];
        MOE_ASSERT(s->from == NULL || s->from != s->to);
        MOE_ASSERT(s->n_silent <= s->n_tokens && (s->out != NULL || s->n_silent == s->n_tokens));
        (void)s;
    }
    delta_job job = {.cpu = cpu, .d = rule, .n_channels = channels_of(rule)};
    job.n_parts = 2 * rule->n_key_head + rule->n_head;
    moe_cpu_for(cpu, rule->n_sequences * job.n_parts, 4, convolve_range, &job);
    uint32_t n_blocks = (rule->value_dim + MOE_DELTA_COLUMNS - 1) / MOE_DELTA_COLUMNS;
    job.n_parts = rule->n_head * n_blocks;
    moe_cpu_for(cpu, rule->n_sequences * job.n_parts, 2, advance_range, &job);
    return MOE_OK;
}
