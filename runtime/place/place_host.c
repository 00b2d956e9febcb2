/* SPDX-License-Identifier: MIT */
/* The host as a place: it computes experts in host memory while the device computes others and the
 * link moves more. It is a CPU device with its own team, driven by one thread.
 *
 *    submit(): rows to the host -> [experts on the host's thread] -> collect(): results back */
#include <pthread.h>
#include <stdlib.h>

#include "cpu/cpu_device.h"
#include "runtime/base/alloc.h"
#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/base/moe_assert.h"
#include "runtime/host/team.h"
#include "runtime/place/place.h"

#define MOST_BROUGHT 32u /* rows fetched before a job asks for them, at most */

typedef enum job_state { JOB_NONE, JOB_GIVEN, JOB_DONE } job_state;

typedef struct host_place {
    moe_place base;
    /* Set at open, never changed. */
    moe_device *device;
    moe_place_shape shape;
    bool announces;
    moe_team *team;
    moe_device *cpu;
    pthread_t thread;
    bool has_thread;

    /* Under the lock. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    job_state state;
    bool stop;

    /* The job. It belongs to the thread while GIVEN, otherwise to the caller. */
    float *x;               /* [max_rows][n_in] */
    float *out;             /* [max_rows * n_used][n_in]: consecutive rows */
    uint32_t *out_index;    /* [max_rows * n_used]: 0, 1, .. */
    uint32_t *out_rows;     /* [max_rows * n_used]: where these rows go in the device's output */
    moe_expert_work *works; /* [n_expert] */
    uint32_t n_works;
    uint32_t n_x_rows;
    uint32_t n_out_rows;
    float *target; /* device: where the outputs go */
    int status;
    moe_error error;
    uint64_t ns;
} host_place;

static size_t max_out_rows(const moe_place_shape *shape)
{
    return (size_t)shape->max_rows * shape->n_used;
}

static size_t x_bytes(const moe_place_shape *shape)
{
    return (size_t)shape->max_rows * shape->n_in * sizeof(float);
}

uint64_t moe_place_host_bytes(const moe_place_shape *shape)
{
    uint64_t n_out = max_out_rows(shape);
    uint64_t floats = ((uint64_t)shape->max_rows + n_out) * shape->n_in;
    /* Scratch of the CPU device: inner rows, twice as floats and once quantised, and some
     * margin. */
    uint64_t inner = n_out * shape->n_ff * 3 * sizeof(float);
    return floats * sizeof(float) + inner + floats / 2 + n_out * 2 * sizeof(uint32_t) + (1u << 20);
}

static void *host_main(void *arg)
{
    host_place *host = arg;
    pthread_mutex_lock(&host->lock);
    for (;;) {
        while (host->state != JOB_GIVEN && !host->stop) {
            pthread_cond_wait(&host->changed, &host->lock);
        }
        if (host->state != JOB_GIVEN) {
            break;
        }
        pthread_mutex_unlock(&host->lock);
        uint64_t begin = moe_now_ns();
        uint32_t n_in = host->shape.n_in;
        host->status =
            host->cpu->ops->experts(host->cpu, host->x, host->n_x_rows, n_in, host->works,
                                    host->n_works, host->out, n_in, &host->error);
        host->ns = moe_now_ns() - begin;
        pthread_mutex_lock(&host->lock);
        MOE_ASSERT(host->state == JOB_GIVEN);
        host->state = JOB_DONE;
        pthread_cond_broadcast(&host->changed);
    }
    pthread_mutex_unlock(&host->lock);
    return NULL;
}

static int allocate(host_place *host, moe_error *err)
{
    const moe_place_shape *shape = &host->shape;
    size_t n_out = max_out_rows(shape);
    void *x;
    MOE_TRY(host->device->link->host_alloc(host->device, x_bytes(shape), &x, err));
    host->x = x;
    host->out = moe_calloc(n_out * shape->n_in, sizeof *host->out);
    host->out_index = moe_calloc(n_out, sizeof *host->out_index);
    host->out_rows = moe_calloc(n_out, sizeof *host->out_rows);
    host->works = moe_calloc(shape->n_expert, sizeof *host->works);
    if (host->out == NULL || host->out_index == NULL || host->out_rows == NULL ||
        host->works == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for computing experts on the host");
    }
    for (size_t i = 0; i < n_out; i++) {
        host->out_index[i] = (uint32_t)i;
    }
    return MOE_OK;
}

static int open_parts(host_place *host, const moe_host_place_options *o, moe_error *err)
{
    int status = allocate(host, err);
    if (status == MOE_OK) {
        status = moe_team_create(&host->team, o->n_threads, err);
    }
    if (status == MOE_OK) {
        moe_cpu_device_options options = {.team = host->team, .cpu_features = o->cpu_features};
        status = moe_cpu_device_open(&host->cpu, &options, err);
    }
    if (status == MOE_OK) {
        const moe_place_shape *s = &o->shape;
        moe_device_limits limits = {.linear = {s->max_rows, s->n_in},
                                    .ff = {{s->max_rows * s->n_used, s->n_ff}},
                                    .max_v_dim = 1,
                                    .max_head_group = 1};
        status = host->cpu->ops->reserve(host->cpu, &limits, err);
    }
    if (status == MOE_OK) {
        int code = pthread_create(&host->thread, NULL, host_main, host);
        host->has_thread = code == 0;
        status = code == 0 ? MOE_OK
                           : moe_fail(err, MOE_ERR_MEMORY,
                                      "cannot start the thread of host computing (error %d)", code);
    }
    return status;
}

static void host_close(moe_place *place)
{
    host_place *host = (host_place *)place;
    if (host->has_thread) {
        pthread_mutex_lock(&host->lock);
        host->stop = true;
        pthread_cond_broadcast(&host->changed);
        pthread_mutex_unlock(&host->lock);
        pthread_join(host->thread, NULL);
    }
    if (host->cpu != NULL) {
        host->cpu->ops->close(host->cpu);
    }
    moe_team_destroy(&host->team);
    pthread_mutex_destroy(&host->lock);
    pthread_cond_destroy(&host->changed);
    if (host->x != NULL) {
        host->device->link->host_free(host->device, host->x, x_bytes(&host->shape));
    }
    free(host->out);
    free(host->out_index);
    free(host->out_rows);
    free(host->works);
    free(host);
}

/* ---- A job ---- */

/* Whether to fetch announced rows: for a few rows, that costs less than another round trip. */
static bool brings(const host_place *host, uint32_t n_rows)
{
    return host->announces && host->device->queues && n_rows <= MOST_BROUGHT;
}

static int host_announce(moe_place *place, const float *x, uint32_t n_rows, moe_error *err)
{
    const host_place *host = (host_place *)place;
    size_t bytes = (size_t)n_rows * host->shape.n_in * sizeof *x;
    return brings(host, n_rows)
               ? host->device->ops->download_later(host->device, host->x, x, bytes, err)
               : MOE_OK;
}

/* Copies the works for the host, where their outputs become consecutive rows. */
static void take_works(host_place *host, const moe_place_job *job)
{
    host->n_works = job->n_works;
    host->n_out_rows = 0;
    for (uint32_t i = 0; i < job->n_works; i++) {
        moe_expert_work *work = &host->works[i];
        *work = job->works[i];
        work->out_index = host->out_index + host->n_out_rows;
        for (uint32_t r = 0; r < work->n_rows; r++) {
            host->out_rows[host->n_out_rows++] = job->works[i].out_index[r];
        }
    }
}

static int host_submit(moe_place *place, const moe_place_job *job, moe_error *err)
{
    host_place *host = (host_place *)place;
    MOE_ASSERT(job->n_x_rows <= host->shape.max_rows && job->n_works <= host->shape.n_expert);
    if (!brings(host, job->n_x_rows)) {
        size_t bytes = (size_t)job->n_x_rows * host->shape.n_in * sizeof *host->x;
        MOE_TRY(host->device->ops->download(host->device, host->x, job->x, bytes, err));
    }
    take_works(host, job);
    host->n_x_rows = job->n_x_rows;
    host->target = job->out;
    pthread_mutex_lock(&host->lock);
    MOE_ASSERT(host->state == JOB_NONE);
    host->state = JOB_GIVEN;
    pthread_cond_broadcast(&host->changed);
    pthread_mutex_unlock(&host->lock);
    return MOE_OK;
}

/* Waits for the job. False: there is none. */
static bool wait_for_job(host_place *host)
{
    pthread_mutex_lock(&host->lock);
    while (host->state == JOB_GIVEN) {
        pthread_cond_wait(&host->changed, &host->lock);
    }
    bool done = host->state == JOB_DONE;
    host->state = JOB_NONE;
    pthread_mutex_unlock(&host->lock);
    return done;
}

static int host_collect(moe_place *place, int status, moe_error *err)
{
    host_place *host = (host_place *)place;
    if (!wait_for_job(host)) {
        return status;
    }
    moe_place_note(&host->base.times, host->n_works, host->n_out_rows, host->ns);
    if (status != MOE_OK) {
        return status;
    }
    if (host->status != MOE_OK) {
        return moe_fail(err, host->status, "%s", host->error.message);
    }
    return host->device->ops->scatter(host->device, host->out, host->shape.n_in, host->out_rows,
                                      host->n_out_rows, host->target, err);
}

static const moe_place_ops host_ops = {
    .announce = host_announce, .submit = host_submit, .collect = host_collect, .close = host_close};

int moe_place_open_host(moe_place **out, const moe_host_place_options *options, moe_error *err)
{
    *out = NULL;
    host_place *host = moe_calloc(1, sizeof *host);
    if (host == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for computing experts on the host");
    }
    host->base.ops = &host_ops;
    host->device = options->device;
    host->shape = options->shape;
    host->announces = options->announces;
    pthread_mutex_init(&host->lock, NULL);
    pthread_cond_init(&host->changed, NULL);
    int status = open_parts(host, options, err);
    if (status != MOE_OK) {
        host_close(&host->base);
        return status;
    }
    *out = &host->base;
    return MOE_OK;
}
