/* SPDX-License-Identifier: MIT */
/* A short convolution alone: a whole layer, or the first part of a selective scan. A task is some
 * channels of one sequence. */
#include "cpu/cpu_convolution.h"
#include "runtime/base/moe_assert.h"

typedef struct conv_job {
    moe_cpu_convolution convolution;
    const moe_short_conv *d;
    uint32_t n_parts; /* tasks of a sequence */
} conv_job;

static void convolve_range(void *context, uint32_t begin, uint32_t end)
{
    const conv_job *job = context;
    const moe_short_conv *d = job->d;
    for (uint32_t task = begin; task < end; task++) {
        size_t first_row;
        const moe_delta_sequence *s =
            moe_cpu_sequence_of(d->sequences, job->n_parts, task, &first_row);
        uint32_t first = task % job->n_parts * MOE_CPU_CONV_CHANNELS;
        uint32_t n = d->n - first;
        n = n < MOE_CPU_CONV_CHANNELS ? n : MOE_CPU_CONV_CHANNELS;
        moe_cpu_channels channels = {first, n, d->conv + (size_t)first * d->conv_kernel,
                                     d->bias != NULL ? d->bias + first : NULL};
        if (s->out != NULL) {
            moe_cpu_convolve(&job->convolution, s, &channels, s->n_silent,
                             s->n_tokens - s->n_silent, s->out + first, d->n);
        }
        moe_cpu_keep_tail(&job->convolution, s, first, n);
    }
}

int moe_cpu_short_conv(moe_device *device, const moe_short_conv *conv, moe_error *err)
{
    (void)err;
    moe_cpu_device *cpu = moe_cpu_device_of(device);
    MOE_ASSERT(conv->n > 0 && conv->conv_kernel > 0 && conv->conv_kernel <= MOE_DELTA_MAX_TAPS);
    conv_job job = {.convolution = {.cpu = cpu,
                                    .n_channels = conv->n,
                                    .n_taps = conv->conv_kernel,
                                    .step = conv->step,
                                    .silu = conv->silu,
                                    .tail_at = conv->tail_at},
                    .d = conv,
                    .n_parts = (conv->n + MOE_CPU_CONV_CHANNELS - 1) / MOE_CPU_CONV_CHANNELS};
    moe_cpu_for(cpu, conv->n_sequences * job.n_parts, 4, convolve_range, &job);
    return MOE_OK;
}
