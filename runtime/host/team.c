/* SPDX-License-Identifier: MIT */
/* A pass of a small model is a few hundred fork-joins of some microseconds each, so workers spin
 * for a while before they sleep:
 *
 *   caller: job, generation+1, wake ----> works as worker 0 ----> waits for remaining == 0
 *   worker: waits for a new generation -> works -> remaining-1, wakes the caller at 0
 *
 * Waiting spins SPIN_NS, then sleeps on the futex of the word it watches. */
#include "runtime/host/team.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/base/alloc.h"
#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/host/topology.h"

#define SPIN_NS     60000u
#define MAX_THREADS 1024u

typedef struct worker {
    moe_team *team;
    uint32_t index;
    pthread_t thread;
} worker;

struct moe_team {
    /* Set at creation, never changed. */
    uint32_t n_threads;
    worker *workers; /* [n_threads - 1]: workers 1.. */
    moe_topology topology;
    bool bind;

    /* Written by the caller before a generation begins. */
    moe_team_fn fn;
    void *arg;
    bool stop;

    _Alignas(64) _Atomic uint32_t generation;
    _Alignas(64) _Atomic uint32_t remaining;
};

static inline void cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void futex_wait(_Atomic uint32_t *word, uint32_t value)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

/* Returns once *word differs from value. */
static void wait_while_equal(_Atomic uint32_t *word, uint32_t value)
{
    uint64_t deadline = 0;
    for (uint32_t spins = 0;; spins++) {
        if (atomic_load_explicit(word, memory_order_acquire) != value) {
            return;
        }
        cpu_relax();
        if ((spins & 255) == 255) {
            uint64_t now = moe_now_ns();
            if (deadline == 0) {
                deadline = now + SPIN_NS;
            } else if (now > deadline) {
                futex_wait(word, value);
            }
        }
    }
}

static void bind_to_cpu(int cpu)
{
    size_t bytes = CPU_ALLOC_SIZE(cpu + 1);
    cpu_set_t *set = CPU_ALLOC(cpu + 1);
    if (set != NULL) {
        CPU_ZERO_S(bytes, set);
        CPU_SET_S(cpu, bytes, set);
        /* A refusal (a container's policy) costs speed, not results. */
        (void)sched_setaffinity(0, bytes, set);
        CPU_FREE(set);
    }
}

static void *worker_main(void *arg)
{
    worker *self = arg;
    moe_team *team = self->team;
    if (team->bind) {
        bind_to_cpu(team->topology.usable_cores[self->index].cpu);
    }
    uint32_t seen = 0;
    for (;;) {
        wait_while_equal(&team->generation, seen);
        seen++;
        if (team->stop) {
            return NULL;
        }
        team->fn(team->arg, self->index, team->n_threads);
        if (atomic_fetch_sub_explicit(&team->remaining, 1, memory_order_acq_rel) == 1) {
            futex_wake(&team->remaining);
        }
    }
}

static void begin_generation(moe_team *team)
{
    atomic_store_explicit(&team->remaining, team->n_threads - 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&team->generation, 1, memory_order_release);
    futex_wake(&team->generation);
}

void moe_team_run(moe_team *team, moe_team_fn fn, void *arg)
{
    if (team->n_threads == 1) {
        fn(arg, 0, 1);
        return;
    }
    team->fn = fn;
    team->arg = arg;
    begin_generation(team);
    fn(arg, 0, team->n_threads);
    for (;;) {
        uint32_t left = atomic_load_explicit(&team->remaining, memory_order_acquire);
        if (left == 0) {
            return;
        }
        wait_while_equal(&team->remaining, left);
    }
}

static void stop_workers(moe_team *team, uint32_t n_started)
{
    team->stop = true;
    begin_generation(team);
    for (uint32_t i = 0; i < n_started; i++) {
        pthread_join(team->workers[i].thread, NULL);
    }
}

static int start_workers(moe_team *team, moe_error *err)
{
    for (uint32_t i = 1; i < team->n_threads; i++) {
        worker *w = &team->workers[i - 1];
        *w = (worker){.team = team, .index = i};
        int code = pthread_create(&w->thread, NULL, worker_main, w);
        if (code != 0) {
            stop_workers(team, i - 1);
            return moe_fail(err, MOE_ERR_MEMORY,
                            "cannot start worker thread %u of %u (error %d); ask for fewer threads",
                            i, team->n_threads, code);
        }
    }
    return MOE_OK;
}

/* A process with a share of the cores' time is not alone on them: if every such process bound its
 * workers to the first cores, they would sit there together. */
static bool may_bind(const moe_topology *topology, uint32_t n_threads)
{
    bool shares = topology->cpu_quota > 0 && topology->cpu_quota < topology->n_usable_cores;
    return n_threads <= topology->n_usable_cores && !shares;
}

int moe_team_create(moe_team **out, uint32_t n_threads, moe_error *err)
{
    *out = NULL;
    if (n_threads > MAX_THREADS) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "threads: %u is more than the limit of %u",
                        n_threads, MAX_THREADS);
    }
    moe_team *team = moe_calloc_aligned(1, sizeof *team);
    if (team == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for the worker team");
    }
    int status = moe_topology_read(&team->topology, err);
    if (status != MOE_OK) {
        free(team);
        return status;
    }
    uint32_t usual = moe_topology_default_threads(&team->topology);
    team->n_threads = n_threads != 0 ? n_threads : (usual < MAX_THREADS ? usual : MAX_THREADS);
    team->bind = may_bind(&team->topology, team->n_threads);
    team->workers = moe_calloc(team->n_threads, sizeof *team->workers);
    status = team->workers == NULL
                 ? moe_fail(err, MOE_ERR_MEMORY, "no memory for %u workers", team->n_threads)
                 : start_workers(team, err);
    if (status != MOE_OK) {
        moe_topology_free(&team->topology);
        free(team->workers);
        free(team);
        return status;
    }
    *out = team;
    return MOE_OK;
}

void moe_team_destroy(moe_team **team_ptr)
{
    moe_team *team = *team_ptr;
    if (team == NULL) {
        return;
    }
    stop_workers(team, team->n_threads - 1);
    moe_topology_free(&team->topology);
    free(team->workers);
    free(team);
    *team_ptr = NULL;
}

uint32_t moe_team_size(const moe_team *team)
{
    return team->n_threads;
}
