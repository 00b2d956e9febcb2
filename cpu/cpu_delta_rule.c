/* SPDX-License-Identifier: MIT */
/* The gated delta rule in two rounds of tasks. The first round is the short convolution: a task
 * computes one head's queries, keys or values for one sequence. The second round computes the
 * states. */
#include "cpu/cpu_convolution.h"
#include "cpu/cpu_states.h"
#include "runtime/base/moe_assert.h"

_Static_assert(MOE_DELTA_MAX_KEY_DIM <= MOE_CPU_CONV_CHANNELS &&
                   MOE_DELTA_MAX_VALUE_DIM <= MOE_CPU_CONV_CHANNELS,
               "a head's channels are convolved at once");

typedef struct delta_job {
    moe_cpu_device *cpu;
    const moe_delta_rule *d;
    moe_cpu_convolution convolution;
    uint32_t n_channels;
    uint32_t n_parts; /* tasks of a sequence in this round */
} delta_job;

static uint32_t channels_of(const moe_delta_rule *d)
{
    return 2 * d->n_key_head * d->key_dim + d->n_head * d->value_dim;
}

/* Computes part p of a sequence. The parts are the key heads' queries, then their keys, then the
 * value heads' values. */
static void convolve_part(const delta_job *job, const moe_delta_sequence *s, size_t first_row,
                          uint32_t p)
{
    const moe_delta_rule *d = job->d;
    uint32_t n_keys = 2 * d->n_key_head;
    bool key = p < n_keys;
    uint32_t n = key ? d->key_dim : d->value_dim;
    uint32_t first = key ? p * n : n_keys * d->key_dim + (p - n_keys) * n;
    moe_cpu_channels channels = {first, n, d->conv + (size_t)first * d->conv_kernel, NULL};
    moe_cpu_part part = !key ? MOE_CPU_VALUE : p < d->n_key_head ? MOE_CPU_QUERY : MOE_CPU_KEY;
    moe_cpu_convolve_part(&job->convolution, s, &channels, part,
                          d->convolved + first_row * job->n_channels + first, job->n_channels);
}

static void convolve_range(void *context, uint32_t begin, uint32_t end)
{
    const delta_job *job = context;
    for (uint32_t task = begin; task < end; task++) {
        size_t first_row;
        const moe_delta_sequence *s =
            moe_cpu_sequence_of(job->d->sequences, job->n_parts, task, &first_row);
        convolve_part(job, s, first_row, task % job->n_parts);
    }
}

static moe_cpu_head head_at(const void *rule, uint32_t head)
{
    const moe_delta_rule *d = rule;
    size_t key_head = d->tiled ? head % d->n_key_head : head / (d->n_head / d->n_key_head);
    size_t keys = (size_t)d->n_key_head * d->key_dim;
    return (moe_cpu_head){.q = key_head * d->key_dim,
                          .k = keys + key_head * d->key_dim,
                          .v = 2 * keys + (size_t)head * d->value_dim};
}

/* Decay and beta of a head for tokens from `first` on. */
static void compute_gates(const void *rule, const moe_delta_sequence *s, uint32_t head,
                          uint32_t first, uint32_t n, float *decay, float *beta)
{
    const moe_delta_rule *d = rule;
    uint32_t group = d->gate_group;
    uint32_t at = head / group * 2 * group + head % group;
    for (uint32_t t = 0; t < n; t++) {
        const float *gates = s->gates + (size_t)(first + t) * s->gates_stride;
        beta[t] = 1.0f / (1.0f + moe_exp(-gates[at]));
        decay[t] = moe_exp(d->decay[head] * moe_softplus(gates[at + group] + d->dt_bias[head]));
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
    job.convolution =
        (moe_cpu_convolution){.cpu = cpu,
                              .n_channels = job.n_channels,
                              .n_taps = rule->conv_kernel,
                              .silu = true,
                              .tail_at = (size_t)rule->n_head * rule->key_dim * rule->value_dim};
    job.n_parts = 2 * rule->n_key_head + rule->n_head;
    moe_cpu_for(cpu, rule->n_sequences * job.n_parts, 4, convolve_range, &job);
    moe_cpu_states states = {.cpu = cpu,
                             .n_head = rule->n_head,
                             .key_dim = rule->key_dim,
                             .value_dim = rule->value_dim,
                             .n_channels = job.n_channels,
                             .convolved = rule->convolved,
                             .sequences = rule->sequences,
                             .n_sequences = rule->n_sequences,
                             .columns = cpu->vector.delta_columns,
                             .head_at = head_at,
                             .gates = compute_gates,
                             .rule = rule};
    moe_cpu_advance_states(&states);
    return MOE_OK;
}
