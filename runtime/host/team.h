/* SPDX-License-Identifier: MIT */
/* A team of worker threads, one for each physical core. They run one function together. */
#ifndef MOE_HOST_TEAM_H
#define MOE_HOST_TEAM_H

#include <stdatomic.h>
#include <stdint.h>

#include <moe/status.h>

typedef struct moe_team moe_team;

/* The function that workers run, each at most once; worker: in [0, n_workers). Some workers may not
 * run it, so the function must take its tasks from a queue. */
typedef void (*moe_team_fn)(void *arg, uint32_t worker, uint32_t n_workers);

/* n_threads = 0: as many as moe_topology_default_threads(). The thread that calls moe_team_run() is
 * worker 0 and keeps its own affinity. The others are bound to one physical core each if there are
 * enough cores and the process has all their time; otherwise they run unbound. */
int moe_team_create(moe_team **out, uint32_t n_threads, moe_error *err);
void moe_team_destroy(moe_team **team);
uint32_t moe_team_size(const moe_team *team);

/* Runs fn on the caller and on every worker that arrives before the caller's call has returned;
 * returns when all of these are done. One caller at a time. */
void moe_team_run(moe_team *team, moe_team_fn fn, void *arg);

/* Hands out tasks [0, n), each to the worker that asks first. */
typedef struct moe_task_queue {
    _Alignas(64) _Atomic uint32_t next;
} moe_task_queue;

static inline uint32_t moe_task_next(moe_task_queue *queue)
{
    return atomic_fetch_add_explicit(&queue->next, 1, memory_order_relaxed);
}

#endif
