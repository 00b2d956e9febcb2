/* SPDX-License-Identifier: MIT */
/* Mamba-2's state space in two rounds of tasks. A task of the first round is the short convolution
 * of a block of channels; the second round computes the states. */
#include "cpu/cpu_convolution.h"
#include "cpu/cpu_states.h"
#include "runtime/base/moe_assert.h"

typedef struct conv_job {
    moe_cpu_convolution convolution;
    const moe_state_space *d;
    uint32_t n_parts; /* tasks of a sequence */
} conv_job;

static uint32_t inner_of(const moe_state_space *d)
{
    return d->n_head * d->value_dim;
}

static void convolve_range(void *context, uint32_t begin, uint32_t end)
{
    const conv_job *job = context;
    const moe_state_space *d = job->d;
    uint32_t n_channels = job->convolution.n_channels;
    for (uint32_t task = begin; task < end; task++) {
        size_t first_row;
        const moe_delta_sequence *s =
            moe_cpu_sequence_of(d->sequences, job->n_parts, task, &first_row);
        uint32_t first = task % job->n_parts * MOE_CPU_CONV_CHANNELS;
        uint32_t n = n_channels - first;
        n = n < MOE_CPU_CONV_CHANNELS ? n : MOE_CPU_CONV_CHANNELS;
        moe_cpu_channels channels = {first, n, d->conv + (size_t)first * d->conv_kernel,
                                     d->conv_bias != NULL ? d->conv_bias + first : NULL};
        moe_cpu_convolve(&job->convolution, s, &channels, 0, s->n_tokens,
                         d->convolved + first_row * n_channels + first, n_channels);
        moe_cpu_keep_tail(&job->convolution, s, first, n);
    }
}

static moe_cpu_head head_at(const void *rule, uint32_t head)
{
    const moe_state_space *d = rule;
    size_t group = head / (d->n_head / d->n_group);
    size_t keys = inner_of(d) + group * d->key_dim;
    return (moe_cpu_head){.q = keys + (size_t)d->n_group * d->key_dim,
                          .k = keys,
                          .v = (size_t)head * d->value_dim,
                          .skip = d->skip[head]};
}

static void compute_gates(const void *rule, const moe_delta_sequence *s, uint32_t head,
                          uint32_t first, uint32_t n, float *decay, float *step)
{
    const moe_state_space *d = rule;
    for (uint32_t t = 0; t < n; t++) {
        const float *gates = s->gates + (size_t)(first + t) * s->gates_stride;
        step[t] = moe_softplus(gates[head] + d->dt_bias[head]);
        decay[t] = moe_exp(d->decay[head] * step[t]);
    }
}

int moe_cpu_state_space(moe_device *device, const moe_state_space *space, moe_error *err)
{
    (void)err;
    moe_cpu_device *cpu = moe_cpu_device_of(device);
    MOE_ASSERT(space->key_dim > 0 && space->key_dim <= MOE_DELTA_MAX_KEY_DIM);
    MOE_ASSERT(space->value_dim > 0 && space->n_group > 0 && space->n_head % space->n_group == 0);
    MOE_ASSERT(space->conv_kernel > 0 && space->conv_kernel <= MOE_DELTA_MAX_TAPS);
    uint32_t n_channels = inner_of(space) + 2 * space->n_group * space->key_dim;
    conv_job job = {
        .convolution = {.cpu = cpu,
                        .n_channels = n_channels,
                        .n_taps = space->conv_kernel,
                        .silu = true,
                        .tail_at = (size_t)space->n_head * space->key_dim * space->value_dim},
        .d = space,
        .n_parts = (n_channels + MOE_CPU_CONV_CHANNELS - 1) / MOE_CPU_CONV_CHANNELS};
    moe_cpu_for(cpu, space->n_sequences * job.n_parts, 2, convolve_range, &job);
    moe_cpu_states states = {.cpu = cpu,
                             .n_head = space->n_head,
                             .key_dim = space->key_dim,
                             .value_dim = space->value_dim,
                             .n_channels = n_channels,
                             .convolved = space->convolved,
                             .sequences = space->sequences,
                             .n_sequences = space->n_sequences,
                             .columns = cpu->vector.space_columns,
                             .head_at = head_at,
                             .gates = compute_gates,
                             .rule = space};
    moe_cpu_advance_states(&states);
    return MOE_OK;
}
