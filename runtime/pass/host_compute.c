/* SPDX-License-Identifier: MIT */
#include "runtime/pass/host_compute.h"

#include <pthread.h>
#include <stdlib.h>

#include "cpu/cpu_device.h"
#include "runtime/base/alloc.h"
#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/base/moe_assert.h"
#include "runtime/host/team.h"
#include "runtime/pass/expert_form.h"
#include "runtime/pass/runner.h"

#define MOST_BROUGHT 32u /* rows */

typedef enum job_state { JOB_NONE, JOB_GIVEN, JOB_DONE } job_state;

struct moe_host_compute {
    /* Set at open, never changed. */
    moe_device *device;
    const moe_model_config *config;
    uint32_t max_rows;
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
    float *x;               /* [max_rows][n_expert_in] */
    float *out;             /* [max_rows * n_used][n_expert_in]: consecutive rows */
    uint32_t *out_index;    /* [max_rows * n_used]: 0, 1, .. */
    uint32_t *ranked_slots; /* [max_rows * n_used]: their places in the output */
    moe_expert_work *works; /* [n_expert] */
    uint32_t n_works;
    uint32_t n_x_rows;
    uint32_t n_out_rows;
    int status;
    moe_error error;
    uint64_t ns;
};

static size_t max_out_rows(const moe_model_config *c, uint32_t max_rows)
{
    return (size_t)max_rows * c->n_expert_used;
}

uint64_t moe_host_compute_bytes(const moe_model_config *c, uint32_t max_rows)
{
    uint64_t n_out = max_out_rows(c, max_rows);
    uint64_t floats = ((uint64_t)max_rows + n_out) * c->n_expert_in;
    /* The CPU device's scratch: inner rows twice as floats and once quantised, with some room. */
    uint64_t inner = n_out * c->n_ff_expert * 3 * sizeof(float);
    return floats * sizeof(float) + inner + floats / 2 + n_out * 2 * sizeof(uint32_t) + (1u << 20);
}

static void *host_main(void *arg)
{
    moe_host_compute *host = arg;
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
        uint32_t n_in = host->config->n_expert_in;
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

static size_t x_bytes(const moe_host_compute *host)
{
    return (size_t)host->max_rows * host->config->n_expert_in * sizeof *host->x;
}

static int allocate(moe_host_compute *host, moe_error *err)
{
    const moe_model_config *c = host->config;
    size_t n_out = max_out_rows(c, host->max_rows);
    void *x;
    int status = host->device->link->host_alloc(host->device, x_bytes(host), &x, err);
    if (status != MOE_OK) {
        return status;
    }
    host->x = x;
    host->out = moe_calloc(n_out * c->n_expert_in, sizeof *host->out);
    host->out_index = moe_calloc(n_out, sizeof *host->out_index);
    host->ranked_slots = moe_calloc(n_out, sizeof *host->ranked_slots);
    host->works = moe_calloc(c->n_expert, sizeof *host->works);
    if (host->out == NULL || host->out_index == NULL || host->ranked_slots == NULL ||
        host->works == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for computing experts on the host");
    }
    for (size_t i = 0; i < n_out; i++) {
        host->out_index[i] = (uint32_t)i;
    }
    return MOE_OK;
}

static int open_parts(moe_host_compute *host, const moe_host_compute_options *o, moe_error *err)
{
    int status = allocate(host, err);
    if (status == MOE_OK) {
        status = moe_team_create(&host->team, o->n_threads, err);
    }
    if (status == MOE_OK) {
        moe_cpu_device_options options = {
            .team = host->team, .cpu_features = o->cpu_features, .weight_bytes = o->weight_bytes};
        status = moe_cpu_device_open(&host->cpu, &options, err);
    }
    if (status == MOE_OK) {
        const moe_model_config *c = o->config;
        moe_device_limits limits = {.linear = {o->max_rows, c->n_expert_in},
                                    .ff = {{o->max_rows * c->n_expert_used, c->n_ff_expert}},
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

int moe_host_compute_open(moe_host_compute **out, const moe_host_compute_options *options,
                          moe_error *err)
{
    *out = NULL;
    moe_host_compute *host = moe_calloc(1, sizeof *host);
    if (host == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for computing experts on the host");
    }
    host->device = options->device;
    host->config = options->config;
    host->max_rows = options->max_rows;
    pthread_mutex_init(&host->lock, NULL);
    pthread_cond_init(&host->changed, NULL);
    int status = open_parts(host, options, err);
    if (status != MOE_OK) {
        moe_host_compute_close(&host);
        return status;
    }
    *out = host;
    return MOE_OK;
}

void moe_host_compute_close(moe_host_compute **host_ptr)
{
    moe_host_compute *host = *host_ptr;
    if (host == NULL) {
        return;
    }
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
        host->device->link->host_free(host->device, host->x, x_bytes(host));
    }
    free(host->out);
    free(host->out_index);
    free(host->ranked_slots);
    free(host->works);
    free(host);
    *host_ptr = NULL;
}

/* ---- A layer ---- */

uint64_t moe_host_compute_time(moe_runner *runner)
{
    const moe_device *device = runner->device;
    if (runner->host != NULL && device->clock != NULL) {
        device->clock->begin(runner->device);
    }
    return moe_now_ns();
}

void moe_host_compute_timed(moe_runner *runner, uint64_t begin, uint32_t n_experts, uint32_t n_rows)
{
    moe_device *device = runner->device;
    moe_timed_work work = {n_experts, n_rows};
    if (runner->host == NULL) {
        return;
    }
    if (device->clock == NULL) {
        moe_expert_store_note_device(runner->experts, n_experts, n_rows, moe_now_ns() - begin);
        return;
    }
    device->clock->end(device, &work);
    for (uint64_t ns; device->clock->take(device, &work, &ns);) {
        moe_expert_store_note_device(runner->experts, work.n_experts, work.n_rows, ns);
    }
}

/* A few rows' activations cost less than another round trip. */
static bool brings_x(const moe_runner *runner, uint32_t n_rows)
{
    return runner->host != NULL && runner->device->queues && n_rows <= MOST_BROUGHT &&
           runner->plan->expert_slots < runner->plan->experts;
}

int moe_host_compute_bring_x(moe_runner *runner, uint32_t layer, uint32_t n_rows, moe_error *err)
{
    size_t bytes = (size_t)n_rows * runner->config->n_expert_in * sizeof(float);
    return brings_x(runner, n_rows)
               ? runner->device->ops->download_later(runner->device, runner->host->x,
                                                     moe_experts_x(runner, layer), bytes, err)
               : MOE_OK;
}

/* Fills in the works of the n experts that the store has given to the host. */
static void fill_works(moe_runner *runner, uint32_t layer, uint32_t n)
{
    moe_host_compute *host = runner->host;
    const moe_pass_buffers *b = &runner->buffers;
    host->n_works = n;
    host->n_out_rows = 0;
    for (uint32_t i = 0; i < n; i++) {
        moe_expert_work *work = &host->works[i];
        *work = moe_plan_work(runner, layer, &b->plan, b->host_positions[i], b->input_scales,
                              &b->host_views[i]);
        const uint32_t *ranks = work->out_index;
        work->out_index = host->out_index + host->n_out_rows;
        for (uint32_t r = 0; r < work->n_rows; r++) {
            host->ranked_slots[host->n_out_rows++] = ranks[r];
        }
    }
}

int moe_host_compute_start(moe_runner *runner, uint32_t layer, uint32_t n_rows, moe_error *err)
{
    moe_host_compute *host = runner->host;
    moe_pass_buffers *b = &runner->buffers;
    uint32_t n = 0;
    if (host != NULL) {
        moe_expert_store_take_host(runner->experts, b->host_positions, b->host_views, &n);
    }
    if (n == 0) {
        return MOE_OK;
    }
    MOE_ASSERT(n_rows <= host->max_rows);
    if (!brings_x(runner, n_rows)) {
        size_t bytes = (size_t)n_rows * host->config->n_expert_in * sizeof *host->x;
        int status = host->device->ops->download(host->device, host->x,
                                                 moe_experts_x(runner, layer), bytes, err);
        if (status != MOE_OK) {
            moe_expert_store_host_done(runner->experts, runner->n_passes);
            return status;
        }
    }
    fill_works(runner, layer, n);
    host->n_x_rows = n_rows;
    pthread_mutex_lock(&host->lock);
    MOE_ASSERT(host->state == JOB_NONE);
    host->state = JOB_GIVEN;
    pthread_cond_broadcast(&host->changed);
    pthread_mutex_unlock(&host->lock);
    return MOE_OK;
}

/* Waits for the job, if there is one; false: there is none. */
static bool wait_for_job(moe_host_compute *host)
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

int moe_host_compute_finish(moe_runner *runner, int status, moe_error *err)
{
    moe_host_compute *host = runner->host;
    if (host == NULL || !wait_for_job(host)) {
        return status;
    }
    moe_expert_store_note_host(runner->experts, host->n_works, host->n_out_rows, host->ns);
    moe_expert_store_host_done(runner->experts, runner->n_passes);
    if (status != MOE_OK) {
        return status;
    }
    if (host->status != MOE_OK) {
        return moe_fail(err, host->status, "%s", host->error.message);
    }
    return host->device->ops->scatter(host->device, host->out, host->config->n_expert_in,
                                      host->ranked_slots, host->n_out_rows,
                                      runner->buffers.values[MOE_VALUE_RANK_OUT], err);
}
