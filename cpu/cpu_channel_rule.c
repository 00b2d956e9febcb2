/* SPDX-License-Identifier: MIT */
/* The delta rule with a decay for each row of a head's state (KDA), in two rounds of tasks. A task
 * of the first round computes a head's queries, keys, values or decays for one sequence. The second
 * round computes the states. A row of the scratch has queries, keys and values of all heads, then
 * the decays. */
#include <math.h>

#include "cpu/cpu_convolution.h"
#include "cpu/cpu_states.h"
#include "runtime/base/moe_assert.h"

#define PARTS 4u /* of a head, in a row of the scratch */

typedef struct channel_job {
    moe_cpu_convolution convolution;
    const moe_channel_rule *d;
} channel_job;

static size_t inner_of(const moe_channel_rule *d)
{
    return (size_t)d->n_head * d->dim;
}

static void compute_decays(const channel_job *job, const moe_delta_sequence *s, uint32_t head,
                           float *out)
{
    const moe_channel_rule *d = job->d;
    const moe_vector_kernels *vector = &job->convolution.cpu->vector;
    const size_t first = (size_t)head * d->dim;
    const float *dt_bias = d->dt_bias + first;
    for (uint32_t t = 0; t < s->n_tokens; t++, out += PARTS * inner_of(d)) {
        const float *f = s->gates + t * s->gates_stride + d->n_head + first;
        if (d->decay_bound < 0.0f) {
            vector->bounded_decays(f, dt_bias, fabsf(d->decay[head]), d->decay_bound, out, d->dim);
        } else {
            vector->row_decays(f, dt_bias, d->decay[head], out, d->dim);
        }
    }
}

static void prepare_range(void *context, uint32_t begin, uint32_t end)
{
    const channel_job *job = context;
    const moe_channel_rule *d = job->d;
    for (uint32_t task = begin; task < end; task++) {
        size_t first_row;
        const moe_delta_sequence *s =
            moe_cpu_sequence_of(d->sequences, PARTS * d->n_head, task, &first_row);
        uint32_t part = task / d->n_head % PARTS, head = task % d->n_head;
        uint32_t first = (part * d->n_head + head) * d->dim;
        float *out = d->convolved + first_row * PARTS * inner_of(d) + first;
        if (part == PARTS - 1) {
            compute_decays(job, s, head, out);
            continue;
        }
        moe_cpu_channels channels = {first, d->dim,
                                     d->conv[part] + (size_t)head * d->dim * d->conv_kernel, NULL};
        moe_cpu_convolve_part(&job->convolution, s, &channels, (moe_cpu_part)part, out,
                              PARTS * inner_of(d));
    }
}

static moe_cpu_head head_at(const void *rule, uint32_t head)
{
    const moe_channel_rule *d = rule;
    size_t first = (size_t)head * d->dim;
    return (moe_cpu_head){.q = first,
                          .k = inner_of(d) + first,
                          .v = 2 * inner_of(d) + first,
                          .decay = 3 * inner_of(d) + first};
}

static void compute_gates(const void *rule, const moe_delta_sequence *s, uint32_t head,
                          uint32_t first, uint32_t n, float *decay, float *beta)
{
    (void)rule;
    (void)decay;
    for (uint32_t t = 0; t < n; t++) {
        beta[t] = 1.0f / (1.0f + moe_exp(-s->gates[(size_t)(first + t) * s->gates_stride + head]));
    }
}

int moe_cpu_channel_rule(moe_device *device, const moe_channel_rule *rule, moe_error *err)
{
    (void)err;
    moe_cpu_device *cpu = moe_cpu_device_of(device);
    MOE_ASSERT(rule->n_head > 0 && rule->dim > 0 && rule->dim <= MOE_DELTA_MAX_KEY_DIM);
    MOE_ASSERT(rule->conv_kernel > 0 && rule->conv_kernel <= MOE_DELTA_MAX_TAPS);
    uint32_t inner = (uint32_t)inner_of(rule);
    channel_job job = {.convolution = {.cpu = cpu,
                                       .n_channels = 3 * inner,
                                       .n_taps = rule->conv_kernel,
                                       .silu = true,
                                       .tail_at = (size_t)inner * rule->dim},
                       .d = rule};
    moe_cpu_for(cpu, rule->n_sequences * PARTS * rule->n_head, 4, prepare_range, &job);
    moe_cpu_states states = {.cpu = cpu,
                             .n_head = rule->n_head,
                             .key_dim = rule->dim,
                             .value_dim = rule->dim,
                             .n_channels = PARTS * inner,
                             .convolved = rule->convolved,
                             .sequences = rule->sequences,
                             .n_sequences = rule->n_sequences,
                             .columns = cpu->vector.channel_columns,
                             .decay_of_rows = true,
                             .head_at = head_at,
                             .gates = compute_gates,
                             .rule = rule};
    moe_cpu_advance_states(&states);
    return MOE_OK;
}
