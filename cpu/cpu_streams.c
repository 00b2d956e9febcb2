/* SPDX-License-Identifier: MIT */
/* Several residual streams: computes a branch's input from them, and adds its output to them. */
#include <math.h>

#include "cpu/cpu_internal.h"
#include "runtime/base/moe_assert.h"

/* Columns of a row that a task computes. */
#define COLUMNS 1024u

typedef struct streams_job {
    moe_cpu_device *cpu;
    const moe_stream_read *read;
    const moe_stream_write *write;
    uint32_t n_blocks; /* of a row's columns */
} streams_job;

static uint32_t blocks_of(uint32_t n)
{
    return (n + COLUMNS - 1) / COLUMNS;
}

/* Turns products into weights: first those of the sum, then those of the addition. */
static void weigh(const moe_cpu_device *cpu, const moe_stream_read *r, float *w)
{
    for (uint32_t i = 0; i < r->n_weights; i++) {
        w[i] = fmaf(w[i], r->scale[i / r->n_streams], r->base[i]);
    }
    cpu->vector.sigmoid(w, r->n_weights);
    for (uint32_t i = 0; i < r->n_weights; i++) {
        w[i] = i < r->n_streams ? w[i] + r->eps : fmaf(r->magnitude, w[i], r->eps);
    }
}

static void read_range(void *context, uint32_t begin, uint32_t end)
{
    const streams_job *job = context;
    const moe_stream_read *r = job->read;
    for (uint32_t task = begin; task < end; task++) {
        const size_t row = task / job->n_blocks;
        const uint32_t at = task % job->n_blocks * COLUMNS;
        const uint32_t n = r->n - at < COLUMNS ? r->n - at : COLUMNS;
        const float *x = r->x + row * r->n_streams * r->n + at;
        const float *w = r->weights + row * r->n_weights;
        float *y = r->y + row * r->n + at;
        for (uint32_t i = 0; i < n; i++) {
            y[i] = 0.0f;
        }
        for (uint32_t s = 0; s < r->n_streams; s++) {
            job->cpu->vector.axpy(w[s], x + (size_t)s * r->n, y, n);
        }
    }
}

int moe_cpu_stream_read(moe_device *device, const moe_stream_read *read, uint32_t n_rows,
                        moe_error *err)
{
    MOE_ASSERT(read->n_weights % read->n_streams == 0);
    (void)err;
    streams_job job = {
        .cpu = moe_cpu_device_of(device), .read = read, .n_blocks = blocks_of(read->n)};
    for (uint32_t r = 0; r < n_rows; r++) {
        weigh(job.cpu, read, read->weights + (size_t)r * read->n_weights);
    }
    moe_cpu_for(job.cpu, n_rows * job.n_blocks, 4, read_range, &job);
    return MOE_OK;
}

static void write_range(void *context, uint32_t begin, uint32_t end)
{
    const streams_job *job = context;
    const moe_stream_write *w = job->write;
    for (uint32_t task = begin; task < end; task++) {
        const size_t row = task / job->n_blocks;
        const uint32_t at = task % job->n_blocks * COLUMNS;
        const uint32_t n = w->n - at < COLUMNS ? w->n - at : COLUMNS;
        float *x = w->x + row * w->n_streams * w->n + at;
        for (uint32_t s = 0; s < w->n_streams; s++) {
            job->cpu->vector.axpy(w->weights[row * w->weights_stride + s],
                                  w->branch + row * w->n + at, x + (size_t)s * w->n, n);
        }
    }
}

int moe_cpu_stream_write(moe_device *device, const moe_stream_write *write, uint32_t n_rows,
                         moe_error *err)
{
    MOE_ASSERT(write->weights_stride >= write->n_streams);
    (void)err;
    streams_job job = {
        .cpu = moe_cpu_device_of(device), .write = write, .n_blocks = blocks_of(write->n)};
    moe_cpu_for(job.cpu, n_rows * job.n_blocks, 4, write_range, &job);
    return MOE_OK;
}
