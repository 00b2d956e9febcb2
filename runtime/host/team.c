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
#include <hwloc.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/base/alloc.h"
#include "runtime/base/clock.h"
#include "runtime/base/error.h"

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
    hwloc_topology_t topology;
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

static void bind_to_core(moe_team *team, uint32_t index)
{
    hwloc_obj_t core = hwloc_get_obj_by_type(team->topology, HWLOC_OBJ_CORE, index);
    if (core != NULL) {
        /* A refusal (a container's policy) costs speed, not results. */
        (void)hwloc_set_cpubind(team->topology, core->cpuset, HWLOC_CPUBIND_THREAD);
    }
}

static void *worker_main(void *arg)
{
    worker *self = arg;
    moe_team *team = self->team;
    if (team->bind) {
        bind_to_core(team, self->index);
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

/* The cores of the machine restricted to the process's affinity mask. */
static int load_allowed_topology(hwloc_topology_t *topology)
{
    if (hwloc_topology_init(topology) != 0) {
        return -1;
    }
    if (hwloc_topology_load(*topology) != 0) {
        hwloc_topology_destroy(*topology);
        return -1;
    }
    hwloc_bitmap_t allowed = hwloc_bitmap_alloc();
    if (allowed != NULL && hwloc_get_cpubind(*topology, allowed, HWLOC_CPUBIND_PROCESS) == 0 &&
        !hwloc_bitmap_iszero(allowed)) {
        (void)hwloc_topology_restrict(*topology, allowed, 0);
    }
    hwloc_bitmap_free(allowed);
    return 0;
}

static uint32_t count_cores(hwloc_topology_t topology)
{
    int cores = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE);
    if (cores <= 0) {
        cores = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PU);
    }
    return cores > 0 ? (uint32_t)cores : 1;
}

uint32_t moe_team_default_size(void)
{
    hwloc_topology_t topology;
    if (load_allowed_topology(&topology) != 0) {
        return 1;
    }
    uint32_t cores = count_cores(topology);
    hwloc_topology_destroy(topology);
    return cores < MAX_THREADS ? cores : MAX_THREADS;
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
    if (load_allowed_topology(&team->topology) != 0) {
        free(team);
        return moe_fail(err, MOE_ERR_INTERNAL, "hwloc cannot read the machine's topology");
    }
    uint32_t cores = count_cores(team->topology);
    team->n_threads = n_threads != 0 ? n_threads : (cores < MAX_THREADS ? cores : MAX_THREADS);
    team->bind = team->n_threads <= cores;
    team->workers = moe_calloc(team->n_threads, sizeof *team->workers);
    int status = team->workers == NULL
                     ? moe_fail(err, MOE_ERR_MEMORY, "no memory for %u workers", team->n_threads)
                     : start_workers(team, err);
    if (status != MOE_OK) {
        hwloc_topology_destroy(team->topology);
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
    hwloc_topology_destroy(team->topology);
    free(team->workers);
    free(team);
    *team_ptr = NULL;
}

uint32_t moe_team_size(const moe_team *team)
{
    return team->n_threads;
}
