/* SPDX-License-Identifier: MIT */
/* Memory accounting, the link's clock, and the threads that carry out the two copy queues. */
#include "runtime/device/sim_device.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "runtime/base/alloc.h"
#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/device/sim_internal.h"

/* A sleep may end this late, so the last part of a wait spins. */
#define WAKE_SLACK_NS 80000u
#define MIB           1048576.0

static moe_sim_device *sim_of(moe_device *device)
{
    return (moe_sim_device *)device;
}

/* ---- The link's clock ---- */

static void sleep_until(uint64_t end_ns)
{
    uint64_t now = moe_now_ns();
    while (now + WAKE_SLACK_NS < end_ns) {
        uint64_t wake = end_ns - WAKE_SLACK_NS;
        struct timespec until = {.tv_sec = (time_t)(wake / 1000000000u),
                                 .tv_nsec = (long)(wake % 1000000000u)};
        (void)clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
        now = moe_now_ns();
    }
    while (moe_now_ns() < end_ns) {
        (void)sched_yield(); /* work that goes on during the transfer may need this core */
    }
}

/* Reserves one direction of the link for a transfer; returns its earliest end. */
static uint64_t occupy_link(moe_sim_queue *queue, uint64_t asked_ns, size_t bytes)
{
    moe_sim_device *sim = queue->sim;
    double transfer_ns = (double)bytes * 1e9 / (double)sim->spec.link_bytes_per_s;
    pthread_mutex_lock(&sim->lock);
    uint64_t start_ns = asked_ns > queue->free_ns ? asked_ns : queue->free_ns;
    uint64_t end_ns = start_ns + sim->spec.link_latency_ns + (uint64_t)transfer_ns + 1;
    queue->free_ns = end_ns;
    pthread_mutex_unlock(&sim->lock);
    return end_ns;
}

/* Ends the transfer. If the machine was slower than the model, the link stays busy until now. */
static void leave_link(moe_sim_queue *queue, size_t bytes)
{
    uint64_t now = moe_now_ns();
    pthread_mutex_lock(&queue->sim->lock);
    queue->free_ns = now > queue->free_ns ? now : queue->free_ns;
    queue->bytes += bytes;
    pthread_mutex_unlock(&queue->sim->lock);
}

static int sim_upload(moe_device *device, void *dst, const void *src, size_t bytes, moe_error *err)
{
    moe_sim_device *sim = sim_of(device);
    uint64_t end_ns = occupy_link(&sim->to_device, moe_now_ns(), bytes);
    int status = sim->inner->ops->upload(sim->inner, dst, src, bytes, err);
    sleep_until(end_ns);
    leave_link(&sim->to_device, bytes);
    return status;
}

static int sim_download(moe_device *device, void *dst, const void *src, size_t bytes,
                        moe_error *err)
{
    moe_sim_device *sim = sim_of(device);
    uint64_t end_ns = occupy_link(&sim->to_host, moe_now_ns(), bytes);
    int status = sim->inner->ops->download(sim->inner, dst, src, bytes, err);
    sleep_until(end_ns);
    leave_link(&sim->to_host, bytes);
    return status;
}

static int sim_scatter(moe_device *device, const float *x, uint32_t n, const uint32_t *rows,
                       uint32_t n_rows, float *out, moe_error *err)
{
    moe_sim_device *sim = sim_of(device);
    uint64_t bytes = (uint64_t)n_rows * n * sizeof *x;
    uint64_t end_ns = occupy_link(&sim->to_device, moe_now_ns(), bytes);
    int status = sim->inner->ops->scatter(sim->inner, x, n, rows, n_rows, out, err);
    sleep_until(end_ns);
    leave_link(&sim->to_device, bytes);
    return status;
}

/* ---- The copy queues ---- */

static void carry_out(moe_sim_queue *queue, const moe_sim_copy *copy)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < copy->n_ranges; i++) {
        bytes += copy->ranges[i].bytes;
    }
    uint64_t end_ns = occupy_link(queue, copy->asked_ns, bytes);
    for (uint32_t i = 0; i < copy->n_ranges; i++) {
        memcpy(copy->ranges[i].dst, copy->ranges[i].src, copy->ranges[i].bytes);
    }
    sleep_until(end_ns);
    leave_link(queue, bytes);
}

static void tell(moe_sim_device *sim)
{
    pthread_mutex_lock(&sim->notify_lock);
    if (sim->notify != NULL) {
        sim->notify(sim->notify_user);
    }
    pthread_mutex_unlock(&sim->notify_lock);
}

static void *queue_main(void *arg)
{
    moe_sim_queue *queue = arg;
    moe_sim_device *sim = queue->sim;
    pthread_mutex_lock(&sim->lock);
    for (;;) {
        uint64_t ticket = atomic_load(&queue->n_done);
        if (ticket == queue->n_begun) {
            if (sim->stop) {
                break;
            }
            pthread_cond_wait(&queue->begun, &sim->lock);
            continue;
        }
        moe_sim_copy copy = queue->copies[ticket % MOE_MAX_COPIES];
        pthread_mutex_unlock(&sim->lock);
        carry_out(queue, &copy);
        pthread_mutex_lock(&sim->lock);
        atomic_store(&queue->n_done, ticket + 1);
        pthread_cond_broadcast(&sim->done);
        pthread_mutex_unlock(&sim->lock);
        tell(sim);
        pthread_mutex_lock(&sim->lock);
    }
    pthread_mutex_unlock(&sim->lock);
    return NULL;
}

static int begin(moe_sim_queue *queue, const moe_copy_range *ranges, uint32_t n_ranges,
                 uint64_t *ticket, moe_error *err)
{
    moe_sim_device *sim = queue->sim;
    if (n_ranges > MOE_MAX_COPY_RANGES) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "a copy of %u ranges; at most %u travel together",
                        n_ranges, MOE_MAX_COPY_RANGES);
    }
    moe_sim_copy copy = {.n_ranges = n_ranges, .asked_ns = moe_now_ns()};
    memcpy(copy.ranges, ranges, n_ranges * sizeof *ranges);
    int status = MOE_OK;
    pthread_mutex_lock(&sim->lock);
    if (queue->n_begun - atomic_load(&queue->n_done) == MOE_MAX_COPIES) {
        status = moe_fail(err, MOE_ERR_ARGUMENT, "more than %u copies under way", MOE_MAX_COPIES);
    } else {
        *ticket = queue->n_begun++;
        queue->copies[*ticket % MOE_MAX_COPIES] = copy;
        pthread_cond_signal(&queue->begun);
    }
    pthread_mutex_unlock(&sim->lock);
    return status;
}

static int sim_copy_begin(moe_device *device, const moe_copy_range *ranges, uint32_t n_ranges,
                          uint64_t *ticket, moe_error *err)
{
    return begin(&sim_of(device)->to_device, ranges, n_ranges, ticket, err);
}

static int sim_copy_state(moe_device *device, uint64_t ticket)
{
    return ticket < atomic_load(&sim_of(device)->to_device.n_done) ? MOE_OK : MOE_COPY_UNDER_WAY;
}

static int sim_copy_wait(moe_device *device, uint64_t ticket, moe_error *err)
{
    (void)err; /* memcpy does not fail */
    moe_sim_device *sim = sim_of(device);
    pthread_mutex_lock(&sim->lock);
    while (ticket >= atomic_load(&sim->to_device.n_done)) {
        pthread_cond_wait(&sim->done, &sim->lock);
    }
    pthread_mutex_unlock(&sim->lock);
    return MOE_OK;
}

static int sim_save_begin(moe_device *device, const moe_copy_range *ranges, uint32_t n_ranges,
                          uint64_t *ticket, moe_error *err)
{
    return begin(&sim_of(device)->to_host, ranges, n_ranges, ticket, err);
}

static int sim_save_state(moe_device *device, uint64_t ticket)
{
    return ticket < atomic_load(&sim_of(device)->to_host.n_done) ? MOE_OK : MOE_COPY_UNDER_WAY;
}

static void sim_copy_notify(moe_device *device, moe_copy_notify_fn fn, void *user)
{
    moe_sim_device *sim = sim_of(device);
    pthread_mutex_lock(&sim->notify_lock);
    sim->notify = fn;
    sim->notify_user = user;
    pthread_mutex_unlock(&sim->notify_lock);
}

/* ---- Memory ---- */

/* Counts bytes of the device's memory as taken, or refuses. */
static int book(moe_sim_device *sim, uint64_t bytes, moe_error *err)
{
    pthread_mutex_lock(&sim->lock);
    uint64_t left = sim->spec.memory_bytes - sim->bytes_allocated;
    bool fits = bytes <= left;
    sim->bytes_allocated += fits ? bytes : 0;
    pthread_mutex_unlock(&sim->lock);
    if (!fits) {
        return moe_fail(err, MOE_ERR_BUDGET,
                        "%.1f MiB are needed, but the simulated device has %.1f of its %.1f MiB "
                        "left; give it more with memory=",
                        (double)bytes / MIB, (double)left / MIB,
                        (double)sim->spec.memory_bytes / MIB);
    }
    return MOE_OK;
}

static void unbook(moe_sim_device *sim, uint64_t bytes)
{
    pthread_mutex_lock(&sim->lock);
    sim->bytes_allocated -= bytes;
    pthread_mutex_unlock(&sim->lock);
}

static int sim_alloc(moe_device *device, size_t bytes, void **memory, moe_error *err)
{
    moe_sim_device *sim = sim_of(device);
    *memory = NULL;
    MOE_TRY(book(sim, bytes, err));
    int status = sim->inner->ops->alloc(sim->inner, bytes, memory, err);
    if (status != MOE_OK) {
        unbook(sim, bytes);
    }
    return status;
}

static void sim_free(moe_device *device, void *memory, size_t bytes)
{
    moe_sim_device *sim = sim_of(device);
    sim->inner->ops->free(sim->inner, memory, bytes);
    unbook(sim, bytes);
}

/* As on a GPU, memory can only be freed whole. */
static bool sim_give_up(moe_device *device, void *memory, size_t bytes)
{
    (void)device;
    (void)memory;
    (void)bytes;
    return false;
}

static void sim_take_back(moe_device *device, void *memory, size_t bytes)
{
    (void)device;
    (void)memory;
    (void)bytes;
}

static int sim_reserve(moe_device *device, const moe_device_limits *limits, moe_error *err)
{
    moe_sim_device *sim = sim_of(device);
    MOE_TRY(book(sim, sim->inner->ops->scratch_need(sim->inner, limits), err));
    return sim->inner->ops->reserve(sim->inner, limits, err);
}

static uint64_t sim_scratch_need(const moe_device *device, const moe_device_limits *limits)
{
    const moe_device *inner = ((const moe_sim_device *)device)->inner;
    return inner->ops->scratch_need(inner, limits);
}

/* Host memory comes from the inner device, whose memory is host memory, too. */
static int sim_host_alloc(moe_device *device, size_t bytes, void **memory, moe_error *err)
{
    moe_device *inner = moe_sim_inner(device);
    return inner->ops->alloc(inner, bytes, memory, err);
}

static void sim_host_free(moe_device *device, void *memory, size_t bytes)
{
    moe_device *inner = moe_sim_inner(device);
    inner->ops->free(inner, memory, bytes);
}

static bool sim_host_give_up(moe_device *device, void *memory, size_t bytes)
{
    moe_device *inner = moe_sim_inner(device);
    return inner->ops->give_up(inner, memory, bytes);
}

static void sim_host_take_back(moe_device *device, void *memory, size_t bytes)
{
    moe_device *inner = moe_sim_inner(device);
    inner->ops->take_back(inner, memory, bytes);
}

/* ---- Opening ---- */

/* Call when the queues' threads have ended. */
static void release(moe_sim_device *sim)
{
    sim->inner->ops->close(sim->inner);
    pthread_mutex_destroy(&sim->lock);
    pthread_mutex_destroy(&sim->notify_lock);
    pthread_cond_destroy(&sim->to_device.begun);
    pthread_cond_destroy(&sim->to_host.begun);
    pthread_cond_destroy(&sim->done);
    free(sim);
}

static void stop_queue(moe_sim_queue *queue)
{
    pthread_mutex_lock(&queue->sim->lock);
    queue->sim->stop = true;
    pthread_cond_signal(&queue->begun);
    pthread_mutex_unlock(&queue->sim->lock);
    pthread_join(queue->thread, NULL);
}

static void sim_close(moe_device *device)
{
    moe_sim_device *sim = sim_of(device);
    stop_queue(&sim->to_device);
    stop_queue(&sim->to_host);
    release(sim);
}

/* Starts the threads of both queues; if one fails, neither runs. */
static int start_queues(moe_sim_device *sim)
{
    sim->to_device.sim = sim->to_host.sim = sim;
    int code = pthread_create(&sim->to_device.thread, NULL, queue_main, &sim->to_device);
    if (code == 0) {
        code = pthread_create(&sim->to_host.thread, NULL, queue_main, &sim->to_host);
        if (code != 0) {
            stop_queue(&sim->to_device);
        }
    }
    return code;
}

static const moe_device_ops own_ops = {
    .close = sim_close,
    .reserve = sim_reserve,
    .scratch_need = sim_scratch_need,
    .alloc = sim_alloc,
    .free = sim_free,
    .give_up = sim_give_up,
    .take_back = sim_take_back,
    .upload = sim_upload,
    .download = sim_download,
    .download_later = sim_download,
    .scatter = sim_scatter,
};

static const moe_link_ops sim_link = {
    .host_alloc = sim_host_alloc,
    .host_free = sim_host_free,
    .host_give_up = sim_host_give_up,
    .host_take_back = sim_host_take_back,
    .copy_begin = sim_copy_begin,
    .copy_state = sim_copy_state,
    .copy_wait = sim_copy_wait,
    .save_begin = sim_save_begin,
    .save_state = sim_save_state,
    .copy_notify = sim_copy_notify,
};

int moe_sim_device_open(moe_device **out, const moe_sim_spec *spec, moe_device *inner,
                        moe_error *err)
{
    *out = NULL;
    moe_sim_device *sim = moe_calloc(1, sizeof *sim);
    if (sim == NULL) {
        inner->ops->close(inner);
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for a simulated device");
    }
    sim->inner = inner;
    sim->spec = *spec;
    snprintf(sim->name, sizeof sim->name, "simulated: %.4g MiB, %.4g GB/s, %.4g us",
             (double)spec->memory_bytes / MIB, (double)spec->link_bytes_per_s / 1e9,
             (double)spec->link_latency_ns / 1e3);
    sim->ops = own_ops;
    moe_sim_forward_arithmetic(&sim->ops);
    sim->base = (moe_device){.ops = &sim->ops,
                             .name = sim->name,
                             .link = &sim_link,
                             .features = inner->features,
                             .forms = inner->forms,
                             .memory_bytes = spec->memory_bytes,
                             .link_bytes_per_s = spec->link_bytes_per_s,
                             .link_latency_ns = spec->link_latency_ns,
                             .simulated = true};
    pthread_mutex_init(&sim->lock, NULL);
    pthread_mutex_init(&sim->notify_lock, NULL);
    pthread_cond_init(&sim->to_device.begun, NULL);
    pthread_cond_init(&sim->to_host.begun, NULL);
    pthread_cond_init(&sim->done, NULL);
    int code = start_queues(sim);
    if (code != 0) {
        release(sim);
        return moe_fail(err, MOE_ERR_MEMORY, "cannot start the simulated link's thread (error %d)",
                        code);
    }
    *out = &sim->base;
    return MOE_OK;
}

void moe_sim_device_get_stats(moe_device *device, moe_sim_device_stats *stats)
{
    moe_sim_device *sim = sim_of(device);
    pthread_mutex_lock(&sim->lock);
    *stats = (moe_sim_device_stats){.bytes_to_device = sim->to_device.bytes,
                                    .bytes_to_host = sim->to_host.bytes,
                                    .n_copies = atomic_load(&sim->to_device.n_done),
                                    .bytes_allocated = sim->bytes_allocated};
    pthread_mutex_unlock(&sim->lock);
}
