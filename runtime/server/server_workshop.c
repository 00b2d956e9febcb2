/* SPDX-License-Identifier: MIT */
#include "server_workshop.h"

#include <time.h>

#include "server_heap.h"
#include "server_memory.h"
#include "server_socket.h"

/* If a task took at least LARGE_TASK_BYTES, the heap is given back to the system after it. */
enum { LARGE_TASK_BYTES = 256 << 10, LOOK_MS = 100 /* interval between checks of the client */ };

/* Whether the task must stop: its client has left, or the server is shutting down. The workshop's
 * thread asks between steps. */
static bool is_stopped(void *user)
{
    const server_task *task = user;
    return atomic_load(&task->left) || atomic_load(task->giving_up);
}

/* Removes the next task from the list and returns it; NULL: there is none. The caller holds the
 * lock. */
static server_task *next_task(server_workshop *w)
{
    server_task **best = &w->first;
    while (*best != NULL && (*best)->client == w->last_client) {
        best = &(*best)->next;
    }
    best = *best == NULL ? &w->first : best;
    server_task *task = *best;
    if (task != NULL) {
        *best = task->next;
        task->runs = true;
        w->last_client = task->client;
    }
    return task;
}

static void run(const server_workshop *w, server_task *task)
{
    moe_allowance *allowance = task->allowance;
    *allowance = (moe_allowance){
        .bytes = w->bytes, .steps = SERVER_MOST_STEPS, .stopped = is_stopped, .user = task};
    if (is_stopped(task)) {
        allowance->refused = MOE_ERR_CANCELLED;
        return;
    }
    task->result = task->work(task->exchange);
    if (allowance->bytes_peak >= LARGE_TASK_BYTES) {
        server_heap_trim();
    }
}

static void count(server_workshop_counts *c, const moe_allowance *a)
{
    c->n_steps += a->steps_taken;
    c->n_stopped += a->refused == MOE_ERR_CANCELLED;
    c->most_steps = a->steps_taken > c->most_steps ? a->steps_taken : c->most_steps;
    c->most_bytes = a->bytes_peak > c->most_bytes ? a->bytes_peak : c->most_bytes;
}

static void *workshop_thread(void *user)
{
    server_workshop *w = user;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        server_task *task = next_task(w);
        if (task == NULL && w->ending) {
            break;
        }
        if (task == NULL) {
            pthread_cond_wait(&w->coming, &w->lock);
            continue;
        }
        pthread_mutex_unlock(&w->lock);
        run(w, task);
        pthread_mutex_lock(&w->lock);
        count(&w->counts, task->allowance);
        task->done = true;
        pthread_cond_broadcast(&w->done);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

bool server_workshop_start(server_workshop *w, uint64_t bytes)
{
    pthread_condattr_t attributes;
    w->bytes = bytes;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->coming, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&w->done, &attributes);
    pthread_condattr_destroy(&attributes);
    w->started = pthread_create(&w->thread, NULL, workshop_thread, w) == 0;
    return w->started;
}

void server_workshop_end(server_workshop *w)
{
    if (w->started) {
        pthread_mutex_lock(&w->lock);
        w->ending = true;
        pthread_cond_signal(&w->coming);
        pthread_mutex_unlock(&w->lock);
        pthread_join(w->thread, NULL);
    }
    pthread_cond_destroy(&w->coming);
    pthread_cond_destroy(&w->done);
    pthread_mutex_destroy(&w->lock);
}

/* Waits until the task is done. If its client leaves or the server ends before the task is
 * started, removes it from the list. The caller holds the lock. */
static void await(server_workshop *w, server_task *task)
{
    while (!task->done) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += (long)LOOK_MS * 1000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&w->done, &w->lock, &until);
        if (task->done) {
            return;
        }
        // Also when another task's end woke this thread: many short ones would put off the look.
        if (server_peer_left(task->socket)) {
            atomic_store(&task->left, true);
        }
        if (is_stopped(task) && !task->runs) {
            server_task **at = &w->first;
            while (*at != task) {
                at = &(*at)->next;
            }
            *at = task->next;
            w->counts.n_stopped++;
            return;
        }
    }
}

bool server_workshop_do(server_workshop *w, server_task *task)
{
    pthread_mutex_lock(&w->lock);
    server_task **end = &w->first;
    while (*end != NULL) {
        end = &(*end)->next;
    }
    *end = task;
    pthread_cond_signal(&w->coming);
    await(w, task);
    pthread_mutex_unlock(&w->lock);
    return task->result;
}
