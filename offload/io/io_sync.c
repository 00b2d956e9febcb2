/* SPDX-License-Identifier: MIT */
/* The simplest engine: submit() carries each read out at once, and wait() returns the results.
 * Tests compare the other engines with it. It works even where no thread can be started. */
#include <pthread.h>
#include <stdlib.h>

#include "offload/io/io_engine.h"
#include "offload/io/io_signal.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

typedef struct sync_engine {
    moe_byte_source *const *files; /* set at open */
    uint32_t depth;
    moe_io_completion *done; /* [depth]; only the owner touches it */
    uint32_t n_done;
    pthread_mutex_t lock; /* guards woken */
    pthread_cond_t condition;
    bool woken;
} sync_engine;

static int sync_open(void **out, const moe_io_params *params, moe_error *err)
{
    sync_engine *e = moe_calloc(1, sizeof *e);
    if (e == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "sync I/O: out of memory");
    }
    e->files = params->files;
    e->depth = params->depth;
    e->done = moe_calloc(params->depth, sizeof *e->done);
    if (e->done == NULL || !moe_io_condition_init(&e->condition)) {
        free(e->done);
        free(e);
        return moe_fail(err, MOE_ERR_MEMORY, "sync I/O: out of memory");
    }
    pthread_mutex_init(&e->lock, NULL);
    *out = e;
    return MOE_OK;
}

static void sync_use_arena(void *engine, void *arena, size_t bytes)
{
    (void)engine;
    (void)arena;
    (void)bytes;
}

/* The engine keeps no page pinned between reads. */
static bool sync_set_away(void *engine, void *memory, size_t bytes, bool away)
{
    (void)engine;
    (void)memory;
    (void)bytes;
    (void)away;
    return true;
}

static bool sync_close(void *engine, uint64_t timeout_ns)
{
    (void)timeout_ns;
    sync_engine *e = engine;
    pthread_mutex_destroy(&e->lock);
    pthread_cond_destroy(&e->condition);
    free(e->done);
    free(e);
    return true;
}

static uint32_t sync_submit(void *engine, const moe_io_read *reads, uint32_t n)
{
    sync_engine *e = engine;
    uint32_t taken = 0;
    for (; taken < n && e->n_done < e->depth; taken++) {
        const moe_io_read *read = &reads[taken];
        e->done[e->n_done++] = (moe_io_completion){
            .user_data = read->user_data, .result = moe_io_read_now(e->files[read->file], read)};
    }
    return taken;
}

static uint32_t sync_wait(void *engine, moe_io_completion *done, uint32_t capacity,
                          int64_t timeout_ns, bool *woken)
{
    sync_engine *e = engine;
    uint64_t deadline = moe_io_deadline(e->n_done > 0 ? 0 : timeout_ns);
    pthread_mutex_lock(&e->lock);
    while (!e->woken && e->n_done == 0 &&
           moe_io_condition_wait(&e->condition, &e->lock, deadline)) {
    }
    if (e->woken) {
        *woken = true;
        e->woken = false;
    }
    pthread_mutex_unlock(&e->lock);
    uint32_t n = 0;
    while (n < capacity && e->n_done > 0) {
        done[n++] = e->done[--e->n_done];
    }
    return n;
}

static void sync_wake(void *engine)
{
    sync_engine *e = engine;
    pthread_mutex_lock(&e->lock);
    e->woken = true;
    pthread_cond_signal(&e->condition);
    pthread_mutex_unlock(&e->lock);
}

static const char *sync_detail(const void *engine)
{
    (void)engine;
    return "";
}

const moe_io_ops moe_io_sync_ops = {
    .name = "sync",
    .open = sync_open,
    .use_arena = sync_use_arena,
    .set_away = sync_set_away,
    .close = sync_close,
    .submit = sync_submit,
    .wait = sync_wait,
    .wake = sync_wake,
    .detail = sync_detail,
};
