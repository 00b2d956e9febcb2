/* SPDX-License-Identifier: MIT */
/* Reads by a pool of threads: for kernels and sandboxes without io_uring, and for sources that are
 * no local files.
 *
 *   submit() --> queue [depth] --> worker: read() --> done [depth] --> wait()
 *
 * Reads in flight are at most `depth`, so neither ring can overflow. */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "offload/io/io_engine.h"
#include "offload/io/io_signal.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/base/moe_assert.h"

/* More waiting threads than this gain nothing and cost memory. */
#define MAX_THREADS 64

typedef struct threads_engine {
    /* set at open */
    moe_byte_source **files; /* held, since a worker that hangs may still use them */
    uint32_t n_files;
    uint32_t depth;
    pthread_t *threads;
    uint32_t n_threads;
    pthread_mutex_t lock; /* guards everything below */
    pthread_cond_t work;  /* signalled when the queue has something, or at stop */
    pthread_cond_t news;  /* signalled when a read is done, at wake(), and when a worker ends */
    moe_io_read *queue;
    uint32_t queue_head;
    uint32_t n_queued;
    moe_io_completion *done;
    uint32_t done_head;
    uint32_t n_done;
    uint32_t n_reading; /* reads that workers are carrying out */
    uint32_t n_running; /* workers that run */
    bool woken;
    bool stop;
    bool is_abandoned; /* closed while a worker was hanging */
} threads_engine;

static void work_one(threads_engine *e)
{
    moe_io_read read = e->queue[e->queue_head];
    e->queue_head = (e->queue_head + 1) % e->depth;
    MOE_ASSERT(e->n_queued > 0 && e->n_queued + e->n_reading + e->n_done <= e->depth);
    e->n_queued--;
    e->n_reading++;
    const moe_byte_source *file = e->files[read.file];
    pthread_mutex_unlock(&e->lock);
    int32_t result = moe_io_read_now(file, &read);
    pthread_mutex_lock(&e->lock);
    MOE_ASSERT(e->n_reading > 0 && e->n_done < e->depth);
    e->n_reading--;
    e->done[(e->done_head + e->n_done++) % e->depth] =
        (moe_io_completion){.user_data = read.user_data, .result = result};
    pthread_cond_signal(&e->news);
}

static void release(threads_engine *e)
{
    pthread_mutex_destroy(&e->lock);
    pthread_cond_destroy(&e->work);
    pthread_cond_destroy(&e->news);
    for (uint32_t i = 0; i < e->n_files; i++) {
        moe_byte_source_let_go(&e->files[i]);
    }
    free(e->files);
    free(e->threads);
    free(e->queue);
    free(e->done);
    free(e);
}

static void *worker_main(void *argument)
{
    threads_engine *e = argument;
    pthread_mutex_lock(&e->lock);
    while (!e->stop) {
        if (e->n_queued > 0) {
            work_one(e);
        } else {
            pthread_cond_wait(&e->work, &e->lock);
        }
    }
    MOE_ASSERT(e->n_running > 0);
    e->n_running--;
    bool is_last = e->is_abandoned && e->n_running == 0;
    pthread_cond_signal(&e->news);
    pthread_mutex_unlock(&e->lock);
    if (is_last) {
        release(e);
    }
    return NULL;
}

/* Starts workers with all signals blocked: signals are for the program's own threads. */
static void start_workers(threads_engine *e, uint32_t n)
{
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_mutex_lock(&e->lock);
    while (e->n_threads < n &&
           pthread_create(&e->threads[e->n_threads], NULL, worker_main, e) == 0) {
        e->n_threads++;
        e->n_running++;
    }
    pthread_mutex_unlock(&e->lock);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static int threads_open(void **out, const moe_io_params *params, moe_error *err)
{
    threads_engine *e = moe_calloc(1, sizeof *e);
    if (e == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "I/O threads: out of memory");
    }
    uint32_t n = params->depth < MAX_THREADS ? params->depth : MAX_THREADS;
    e->depth = params->depth;
    pthread_mutex_init(&e->lock, NULL);
    bool good = moe_io_condition_init(&e->work) && moe_io_condition_init(&e->news);
    e->files = moe_calloc(params->n_files, sizeof *e->files);
    e->threads = moe_calloc(n, sizeof *e->threads);
    e->queue = moe_calloc(e->depth, sizeof *e->queue);
    e->done = moe_calloc(e->depth, sizeof *e->done);
    if (!good || e->files == NULL || e->threads == NULL || e->queue == NULL || e->done == NULL) {
        release(e);
        return moe_fail(err, MOE_ERR_MEMORY, "I/O threads: out of memory");
    }
    while (e->n_files < params->n_files) {
        e->files[e->n_files] = moe_byte_source_hold(params->files[e->n_files]);
        e->n_files++;
    }
    start_workers(e, n);
    if (e->n_threads == 0) {
        release(e);
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "I/O threads: no thread can be started");
    }
    *out = e;
    return MOE_OK;
}

static void threads_use_arena(void *engine, void *arena, size_t bytes)
{
    (void)engine;
    (void)arena;
    (void)bytes;
}

/* The engine keeps no page pinned between reads. */
static bool threads_set_away(void *engine, void *memory, size_t bytes, bool away)
{
    (void)engine;
    (void)memory;
    (void)bytes;
    (void)away;
    return true;
}

/* Drops queued reads, and waits for the reads that workers are carrying out. If one hangs in the
 * kernel, leaves the workers behind with all memory that they may still touch; the last worker to
 * end frees the engine. */
static bool threads_close(void *engine, uint64_t timeout_ns)
{
    threads_engine *e = engine;
    uint64_t deadline = moe_io_deadline((int64_t)timeout_ns);
    pthread_mutex_lock(&e->lock);
    e->stop = true;
    e->n_queued = 0;
    pthread_cond_broadcast(&e->work);
    while (e->n_running > 0 && moe_io_condition_wait(&e->news, &e->lock, deadline)) {
    }
    bool ended = e->n_running == 0;
    for (uint32_t i = 0; i < e->n_threads && !ended; i++) {
        pthread_detach(e->threads[i]);
    }
    e->is_abandoned = !ended;
    pthread_mutex_unlock(&e->lock);
    for (uint32_t i = 0; ended && i < e->n_threads; i++) {
        pthread_join(e->threads[i], NULL);
    }
    if (ended) {
        release(e);
    }
    return ended;
}

static uint32_t threads_submit(void *engine, const moe_io_read *reads, uint32_t n)
{
    threads_engine *e = engine;
    uint32_t taken = 0;
    pthread_mutex_lock(&e->lock);
    while (taken < n && e->n_queued + e->n_reading + e->n_done < e->depth) {
        e->queue[(e->queue_head + e->n_queued++) % e->depth] = reads[taken++];
        pthread_cond_signal(&e->work);
    }
    pthread_mutex_unlock(&e->lock);
    return taken;
}

static uint32_t threads_wait(void *engine, moe_io_completion *done, uint32_t capacity,
                             int64_t timeout_ns, bool *woken)
{
    threads_engine *e = engine;
    uint64_t deadline = moe_io_deadline(timeout_ns);
    uint32_t n = 0;
    pthread_mutex_lock(&e->lock);
    while (e->n_done == 0 && !e->woken && moe_io_condition_wait(&e->news, &e->lock, deadline)) {
    }
    for (; n < capacity && e->n_done > 0; n++, e->n_done--) {
        done[n] = e->done[e->done_head];
        e->done_head = (e->done_head + 1) % e->depth;
    }
    if (e->woken) {
        *woken = true;
        e->woken = false;
    }
    pthread_mutex_unlock(&e->lock);
    return n;
}

static void threads_wake(void *engine)
{
    threads_engine *e = engine;
    pthread_mutex_lock(&e->lock);
    e->woken = true;
    pthread_cond_signal(&e->news);
    pthread_mutex_unlock(&e->lock);
}

static const char *threads_detail(const void *engine)
{
    (void)engine;
    return "";
}

const moe_io_ops moe_io_threads_ops = {
    .name = "threads",
    .open = threads_open,
    .use_arena = threads_use_arena,
    .set_away = threads_set_away,
    .close = threads_close,
    .submit = threads_submit,
    .wait = threads_wait,
    .wake = threads_wake,
    .detail = threads_detail,
};
