/* SPDX-License-Identifier: MIT */
/* Models with several residual streams: a row has n_streams vectors of n floats, where other models
 * have one. Computes the input of a branch (attention, network) as a weighted sum of a row's
 * streams, and adds the branch's output to them. Functions named *_range carry out tasks; a task is
 * a block of COLUMNS columns of one row, unless the function says otherwise. row_ops.h defines the
 * arithmetic. */
#include <math.h>
#include <string.h>

#include "cpu/cpu_internal.h"
#include "runtime/base/moe_assert.h"

/* Columns of a row that a task computes. */
#define COLUMNS      512u
#define MOST_STREAMS 16u /* the most streams that can be mixed */
#define LEAST_MATCH  1e-6f

typedef struct streams_job {
    moe_cpu_device *cpu;
    const moe_stream_read *read;
    const moe_stream_write *write;
    const moe_stream_match *match;
    uint32_t n_blocks; /* blocks into which a row's columns are divided */
} streams_job;

static uint32_t blocks_of(uint32_t n)
{
    return (n + COLUMNS - 1) / COLUMNS;
}

/* Divides n weights, `step` apart, by their sum. */
static void divide_by_sum(float *w, uint32_t n, uint32_t step, float eps)
{
    float sum = 0.0f;
    for (uint32_t i = 0; i < n; i++) {
        sum += w[i * step];
    }
    for (uint32_t i = 0; i < n; i++) {
        w[i * step] /= sum + eps;
    }
}

/* Turns products into weights for mixing streams. w: [from][to] */
static void weigh_mixing(float *w, uint32_t n, uint32_t mixings, float eps)
{
    for (uint32_t from = 0; from < n; from++) {
        float *row = w + (size_t)from * n;
        float max = row[0];
        for (uint32_t i = 1; i < n; i++) {
            max = row[i] > max ? row[i] : max;
        }
        for (uint32_t i = 0; i < n; i++) {
            row[i] = moe_exp(row[i] - max);
        }
        divide_by_sum(row, n, 1, 0.0f);
        for (uint32_t i = 0; i < n; i++) {
            row[i] += eps;
        }
    }
    for (uint32_t m = 0; m < mixings; m++) {
        for (uint32_t from = 0; from < n && m > 0; from++) {
            divide_by_sum(w + (size_t)from * n, n, 1, eps);
        }
        for (uint32_t to = 0; to < n; to++) {
            divide_by_sum(w + to, n, n, eps);
        }
    }
}

/* Turns products into weights: first those for summing the streams up, then those for adding to the
 * streams, then those for mixing them. */
static void weigh(const moe_cpu_device *cpu, const moe_stream_read *r, float *w)
{
    const uint32_t n = r->n_streams, n_sigmoids = r->n_weights == n ? n : 2 * n;
    for (uint32_t i = 0; i < r->n_weights; i++) {
        const uint32_t part = i / n < 2 ? i / n : 2;
        w[i] = fmaf(w[i], r->scale[part], r->base[i]);
    }
    cpu->vector.sigmoid(w, n_sigmoids);
    for (uint32_t i = 0; i < n_sigmoids; i++) {
        w[i] = i < n ? w[i] + r->eps : fmaf(r->magnitude, w[i], r->write_eps);
    }
    if (r->mixings > 0) {
        weigh_mixing(w + n_sigmoids, n, r->mixings, r->eps);
    }
}

/* Turns products into weights if each element has a gate. There are then only weights for adding to
 * the streams. */
static void weigh_addition(const moe_cpu_device *cpu, const moe_stream_read *r, float *w)
{
    cpu->vector.scale(1.0f / (float)r->n_streams, w, r->n_weights);
    cpu->vector.sigmoid(w, r->n_weights);
    cpu->vector.scale(r->magnitude, w, r->n_weights);
}

static void read_gated_range(void *context, uint32_t begin, uint32_t end)
{
    const streams_job *job = context;
    const moe_stream_read *r = job->read;
    const moe_vector_kernels *vector = &job->cpu->vector;
    for (uint32_t task = begin; task < end; task++) {
        const size_t row = task / job->n_blocks;
        const uint32_t at = task % job->n_blocks * COLUMNS;
        const uint32_t n = r->n - at < COLUMNS ? r->n - at : COLUMNS;
        float *y = r->y + row * r->n + at;
        for (uint32_t s = 0; s < r->n_streams; s++) {
            const size_t from = (row * r->n_streams + s) * r->n + at;
            vector->sigmoid_mul(r->gates + from, r->x + from, r->gates + from, n);
            if (s == 0) {
                memcpy(y, r->gates + from, n * sizeof *y);
            } else {
                vector->add(y, r->gates + from, y, n);
            }
        }
        vector->scale(1.0f / (float)r->n_streams, y, n);
    }
}

static uint32_t stored_of(const moe_stream_read *r)
{
    return r->n_stored > 0 ? r->n_stored : r->n_streams;
}

/* Computes a score for each stream: its product with r->score, divided by the stream's root mean
 * square. A task is one stream of one row. */
static void score_range(void *context, uint32_t begin, uint32_t end)
{
    const streams_job *job = context;
    const moe_stream_read *r = job->read;
    const moe_vector_kernels *vector = &job->cpu->vector;
    for (uint32_t task = begin; task < end; task++) {
        const size_t row = task / r->n_streams, s = task % r->n_streams;
        const float *x = r->x + (row * stored_of(r) + s) * r->n;
        const float inv = 1.0f / sqrtf(vector->dot(x, x, r->n) / (float)r->n + r->eps);
        r->weights[row * r->n_weights + s] = vector->dot(x, r->score, r->n) * inv;
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
        const float *x = r->x + row * stored_of(r) * r->n + at;
        const float *w = r->weights + row * r->n_weights;
        float *y = r->y + row * r->n + at;
        memset(y, 0, n * sizeof *y);
        for (uint32_t s = 0; s < r->n_streams; s++) {
            job->cpu->vector.axpy(w[s], x + (size_t)s * r->n, y, n);
        }
    }
}

int moe_cpu_stream_read(moe_device *device, const moe_stream_read *read, uint32_t n_rows,
                        moe_error *err)
{
    const bool gated = read->gates != NULL, recalls = read->score != NULL;
    MOE_ASSERT(recalls || read->n_weights % read->n_streams == 0);
    MOE_ASSERT(!recalls ||
               (read->n_weights >= read->n_streams && read->n_stored >= read->n_streams));
    MOE_ASSERT(read->mixings == 0 || read->n_weights == read->n_streams * (2 + read->n_streams));
    (void)err;
    streams_job job = {
        .cpu = moe_cpu_device_of(device), .read = read, .n_blocks = blocks_of(read->n)};
    if (recalls) {
        moe_cpu_for(job.cpu, n_rows * read->n_streams, 4, score_range, &job);
    }
    for (uint32_t r = 0; r < n_rows; r++) {
        const size_t at = (size_t)r * read->n_weights;
        if (recalls) {
            job.cpu->vector.softmax(read->weights + at, read->n_streams);
        } else if (!gated) {
            weigh(job.cpu, read, read->weights + at);
        } else if (read->n_weights > 0) { /* else there are no weights */
            weigh_addition(job.cpu, read, read->weights + at);
        }
    }
    moe_cpu_for(job.cpu, n_rows * job.n_blocks, 4, gated ? read_gated_range : read_range, &job);
    return MOE_OK;
}

/* Mixes all streams of a block of columns. */
static void mix_block(const streams_job *job, const float *mixing, float *x, uint32_t n)
{
    const moe_stream_write *w = job->write;
    float mixed[MOST_STREAMS][COLUMNS];
    for (uint32_t to = 0; to < w->n_streams; to++) {
        memset(mixed[to], 0, n * sizeof(float));
        for (uint32_t from = 0; from < w->n_streams; from++) {
            job->cpu->vector.axpy(mixing[from * w->n_streams + to], x + (size_t)from * w->n,
                                  mixed[to], n);
        }
    }
    for (uint32_t s = 0; s < w->n_streams; s++) {
        memcpy(x + (size_t)s * w->n, mixed[s], n * sizeof(float));
    }
}

/* Sets the streams of a block of columns to the branch's output, or adds that output to them. */
static void begin_or_add(const streams_job *job, const float *branch, float *x, uint32_t n)
{
    const moe_stream_write *w = job->write;
    if (w->begins == 0) {
        job->cpu->vector.add(x, branch, x, n);
        return;
    }
    memcpy(x + (size_t)w->begins * w->n, x, n * sizeof *x);
    memcpy(x, branch, n * sizeof *x);
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
        const float *branch = w->branch + row * w->n + at;
        if (w->weights == NULL) {
            begin_or_add(job, branch, x, n);
            continue;
        }
        const float *weights = w->weights + row * w->weights_stride;
        if (w->mixes) {
            mix_block(job, weights + w->n_streams, x, n);
        }
        for (uint32_t s = 0; s < w->n_streams; s++) {
            job->cpu->vector.axpy(weights[s], branch, x + (size_t)s * w->n, n);
        }
    }
}

int moe_cpu_stream_write(moe_device *device, const moe_stream_write *write, uint32_t n_rows,
                         moe_error *err)
{
    MOE_ASSERT(write->weights == NULL || write->weights_stride >= write->n_streams);
    MOE_ASSERT(write->begins < write->n_streams && write->n_streams <= MOST_STREAMS);
    (void)err;
    streams_job job = {
        .cpu = moe_cpu_device_of(device), .write = write, .n_blocks = blocks_of(write->n)};
    moe_cpu_for(job.cpu, n_rows * job.n_blocks, 4, write_range, &job);
    return MOE_OK;
}

/* Replaces each key by the values times a gate. The gate is greater the better the key matches its
 * query. A task is one stream of one row. */
static void match_range(void *context, uint32_t begin, uint32_t end)
{
    const streams_job *job = context;
    const moe_stream_match *m = job->match;
    const moe_vector_kernels *vector = &job->cpu->vector;
    for (uint32_t task = begin; task < end; task++) {
        float *key = m->keys + (size_t)task * m->n;
        const float *query = m->queries + (size_t)task * m->n;
        const float s = vector->dot(key, query, m->n) * (1.0f / sqrtf((float)m->n));
        const float size = fabsf(s) < LEAST_MATCH ? LEAST_MATCH : fabsf(s); /* NaN stays */
        float gate = s == 0.0f ? 0.0f : copysignf(sqrtf(size), s);
        vector->sigmoid(&gate, 1);
        memcpy(key, m->values + (size_t)(task / m->n_streams) * m->n, m->n * sizeof *key);
        vector->scale(gate, key, m->n);
    }
}

int moe_cpu_stream_match(moe_device *device, const moe_stream_match *match, uint32_t n_rows,
                         moe_error *err)
{
    (void)err;
    streams_job job = {.cpu = moe_cpu_device_of(device), .match = match};
    moe_cpu_for(job.cpu, n_rows * match->n_streams, 1, match_range, &job);
    return MOE_OK;
}
