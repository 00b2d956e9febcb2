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
    float *x;               /* [max_rows][n_embd] */
    float *out;             /* [max_rows * n_used][n_embd]: consecutive rows */
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
    uint64_t floats = ((uint64_t)max_rows + n_out) * c->n_embd;
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
        uint32_t n_embd = host->config->n_embd;
        host->status =
            host->cpu->ops->experts(host->cpu, host->x, host->n_x_rows, n_embd, host->works,
                                    host->n_works, host->out, n_embd, &host->error);
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
    return (size_t)host->max_rows * host->config->n_embd * sizeof *host->x;
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
    host->out = moe_calloc(n_out * c->n_embd, sizeof *host->out);
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
        moe_cpu_device_options options = {.team = host->team, .cpu_features = o->cpu_features};
        status = moe_cpu_device_open(&host->cpu, &options, err);
    }
    if (status == MOE_OK) {
        const moe_model_config *c = o->config;
        moe_device_limits limits = {.linear = {o->max_rows, c->n_embd},
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

static void fill_works(moe_host_compute *host, const moe_host_share *share)
{
    const moe_layer_plan *plan = share->plan;
    host->n_works = share->n;
    host->n_out_rows = 0;
    for (uint32_t i = 0; i < share->n; i++) {
        uint32_t begin = plan->first[share->positions[i]];
        uint32_t n = plan->first[share->positions[i] + 1] - begin;
        moe_expert_work *work = &host->works[i];
        *work = moe_expert_work_of(share->runner, share->layer, plan->experts[share->positions[i]],
                                   &share->views[i]);
        work->x_scales = moe_input_scales(share->runner, begin);
        work->x_index = plan->rows + begin;
        work->out_index = host->out_index + host->n_out_rows;
        work->n_rows = n;
        for (uint32_t r = 0; r < n; r++) {
            host->ranked_slots[host->n_out_rows++] = plan->ranked_slots[begin + r];
        }
    }
}

float *moe_host_compute_x(moe_host_compute *host)
{
    return host->x;
}

int moe_host_compute_start(moe_host_compute *host, const moe_host_share *share, moe_error *err)
{
    MOE_ASSERT(share->n > 0 && share->n_rows <= host->max_rows);
    size_t bytes = (size_t)share->n_rows * host->config->n_embd * sizeof *host->x;
    int status = share->x == NULL
                     ? MOE_OK
                     : host->device->ops->download(host->device, host->x, share->x, bytes, err);
    if (status != MOE_OK) {
        return status;
    }
    fill_works(host, share);
    host->n_x_rows = share->n_rows;
    pthread_mutex_lock(&host->lock);
    MOE_ASSERT(host->state == JOB_NONE);
    host->state = JOB_GIVEN;
    pthread_cond_broadcast(&host->changed);
    pthread_mutex_unlock(&host->lock);
    return MOE_OK;
}

int moe_host_compute_wait(moe_host_compute *host, uint32_t *n_rows, uint64_t *ns, moe_error *err)
{
    pthread_mutex_lock(&host->lock);
    while (host->state == JOB_GIVEN) {
        pthread_cond_wait(&host->changed, &host->lock);
    }
    MOE_ASSERT(host->state == JOB_DONE);
    host->state = JOB_NONE;
    pthread_mutex_unlock(&host->lock);
    *n_rows = host->n_out_rows;
    *ns = host->ns;
    if (host->status != MOE_OK && err != NULL) {
        *err = host->error;
    }
    return host->status;
}

int moe_host_compute_deliver(moe_host_compute *host, float *out, moe_error *err)
{
    return host->device->ops->scatter(host->device, host->out, host->config->n_embd,
                                      host->ranked_slots, host->n_out_rows, out, err);
}
