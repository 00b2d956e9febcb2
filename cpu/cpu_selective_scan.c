/* SPDX-License-Identifier: MIT */
/* Mamba-1's selective scan. A task is some channels of one sequence. Their states and decays stay
 * in the first-level cache while the task goes through all tokens. */
#include <string.h>

#include "cpu/cpu_convolution.h"
#include "runtime/base/moe_assert.h"

typedef struct scan_job {
    moe_cpu_device *cpu;
    const moe_selective_scan *d;
    uint32_t n_blocks; /* tasks of a sequence */
} scan_job;

/* Transposes the decays for the kernel, which reads the channels of a state's row side by side. */
static void turn_decays(const moe_selective_scan *d, uint32_t first, uint32_t n, float *rate)
{
    for (uint32_t c = 0; c < n; c++) {
        const float *decay = d->decay + (size_t)(first + c) * d->n_rows;
        for (uint32_t i = 0; i < d->n_rows; i++) {
            rate[i * n + c] = decay[i];
        }
    }
}

static void scan_channels(const scan_job *job, const moe_delta_sequence *s, size_t first_row,
                          uint32_t first, uint32_t n)
{
    const moe_selective_scan *d = job->d;
    _Alignas(64) float state[MOE_DELTA_MAX_KEY_DIM * MOE_DELTA_COLUMNS];
    _Alignas(64) float rate[MOE_DELTA_MAX_KEY_DIM * MOE_DELTA_COLUMNS];
    size_t bytes = n * sizeof *state;
    for (uint32_t i = 0; i < d->n_rows; i++) {
        if (s->from != NULL) {
            memcpy(state + i * n, s->from + (size_t)i * d->n + first, bytes);
        } else {
            memset(state + i * n, 0, bytes);
        }
    }
    turn_decays(d, first, n, rate);
    moe_scan_args args = {.n_rows = d->n_rows,
                          .n = n,
                          .n_tokens = s->n_tokens,
                          .n_silent = s->n_silent,
                          .q = d->q + first_row * d->n_rows,
                          .k = d->k + first_row * d->n_rows,
                          .v = d->v + first_row * d->n + first,
                          .dt = d->dt + first_row * d->n + first,
                          .stride = d->n,
                          .dt_bias = d->dt_bias + first,
                          .skip = d->skip + first,
                          .rate = rate,
                          .state = state,
                          .out = s->out != NULL ? s->out + first : NULL,
                          .out_stride = d->n};
    job->cpu->vector.scan_columns(&args);
    for (uint32_t i = 0; i < d->n_rows && s->to != NULL; i++) {
        memcpy(s->to + (size_t)i * d->n + first, state + i * n, bytes);
    }
}

static void scan_range(void *context, uint32_t begin, uint32_t end)
{
    const scan_job *job = context;
    for (uint32_t task = begin; task < end; task++) {
        size_t first_row;
        const moe_delta_sequence *s =
            moe_cpu_sequence_of(job->d->sequences, job->n_blocks, task, &first_row);
        uint32_t first = task % job->n_blocks * MOE_DELTA_COLUMNS;
        uint32_t n = job->d->n - first;
        scan_channels(job, s, first_row, first, n < MOE_DELTA_COLUMNS ? n : MOE_DELTA_COLUMNS);
    }
}

int moe_cpu_selective_scan(moe_device *device, const moe_selective_scan *scan, moe_error *err)
{
    (void)err;
    scan_job job = {moe_cpu_device_of(device), scan,
                    (scan->n + MOE_DELTA_COLUMNS - 1) / MOE_DELTA_COLUMNS};
    MOE_ASSERT(scan->n > 0 && scan->n_rows > 0 && scan->n_rows <= MOE_DELTA_MAX_KEY_DIM);
    moe_cpu_for(job.cpu, scan->n_sequences * job.n_blocks, 2, scan_range, &job);
    return MOE_OK;
}
