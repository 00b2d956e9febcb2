/* SPDX-License-Identifier: MIT */
/* A pass of a small model is a few hundred fork-joins of some microseconds each; a fork-join is
 * called a generation here. No thread waits for a worker that has not arrived: on a busy machine a
 * core may be away for milliseconds, and the others then share the work. One word holds the state:
 *
 *    gate:  generation | workers that entered | workers inside | open
 *
 *  caller: generation + 1, open -> works as worker 0 -> closes, unless all have entered
 *          -> waits until nobody is inside
 *  worker: waits for an open gate of a new generation -> enters -> works -> leaves
 *
 * A waiting thread spins for SPIN_NS, then sleeps on the gate's futex; only then is there a system
 * call. There is one exception to not waiting: if workers have stayed away for ABSENCE_NS, the
 * caller waits for them once, because (with real-time priorities) it may itself occupy their
 * core. */
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
#include "runtime/base/moe_assert.h"
#include "runtime/host/topology.h"

#define SPIN_NS     60000u
#define ABSENCE_NS  20000000u
#define MAX_THREADS 1024u

#define GATE_OPEN       1u
#define GATE_ONE_INSIDE 2u
#define GATE_INSIDE     (2u * MAX_THREADS - GATE_ONE_INSIDE)
#define GATE_ONE_CAME   (2u * MAX_THREADS)
/* one generation; the bits above it wrap around */
#define GATE_GENERATION (2u * MAX_THREADS * MAX_THREADS)

/* The gate's fields are adjacent, and each can hold the largest number of workers. */
_Static_assert((GATE_INSIDE & GATE_OPEN) == 0 && GATE_INSIDE + GATE_ONE_INSIDE == GATE_ONE_CAME &&
                   GATE_ONE_CAME * MAX_THREADS == GATE_GENERATION,
               "open | inside | came | generation");

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
    uint64_t absent_since; /* used by the caller; 0: all workers came the last time */

    _Alignas(64) _Atomic uint32_t gate;
    _Atomic uint32_t n_asleep;
};

static inline void cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* A thread that changes the gate looks for sleepers after the change. A sleeper counts itself
 * before the kernel compares the gate. So one of the two always sees the other. */
static void sleep_at(moe_team *team, uint32_t gate)
{
    atomic_fetch_add(&team->n_asleep, 1);
    syscall(SYS_futex, &team->gate, FUTEX_WAIT_PRIVATE, gate, NULL, NULL, 0);
    atomic_fetch_sub(&team->n_asleep, 1);
}

static void wake_sleepers(moe_team *team)
{
    if (atomic_load(&team->n_asleep) > 0) {
        syscall(SYS_futex, &team->gate, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
    }
}

/* Waits a little: spins first, later sleeps. *spins and *deadline begin at 0. */
static void wait_a_little(moe_team *team, uint32_t gate, uint32_t *spins, uint64_t *deadline)
{
    cpu_relax();
    if ((++*spins & 255) != 0) {
        return;
    }
    uint64_t now = moe_now_ns();
    if (*deadline == 0) {
        *deadline = now + SPIN_NS;
    } else if (now > *deadline) {
        sleep_at(team, gate);
    }
}

static uint32_t generation_of(uint32_t gate)
{
    return gate / GATE_GENERATION;
}

/* Returns the generation, different from `last`, that the worker has entered. */
static uint32_t enter(moe_team *team, uint32_t last)
{
    uint32_t spins = 0;
    uint64_t deadline = 0;
    for (;;) {
        uint32_t gate = atomic_load_explicit(&team->gate, memory_order_relaxed);
        if ((gate & GATE_OPEN) == 0 || generation_of(gate) == last) {
            wait_a_little(team, gate, &spins, &deadline);
        } else if (atomic_compare_exchange_weak_explicit(
                       &team->gate, &gate, gate + GATE_ONE_CAME + GATE_ONE_INSIDE,
                       memory_order_acquire, memory_order_relaxed)) {
            return generation_of(gate);
        }
    }
}

static bool all_came(const moe_team *team, uint32_t gate)
{
    return gate % GATE_GENERATION / GATE_ONE_CAME == team->n_threads - 1;
}

/* Whether the generation is over: no worker is inside, and none can enter. */
static bool is_over(const moe_team *team, uint32_t gate)
{
    return (gate & GATE_INSIDE) == 0 && ((gate & GATE_OPEN) == 0 || all_came(team, gate));
}

static void leave(moe_team *team)
{
    MOE_ASSERT((atomic_load(&team->gate) & GATE_INSIDE) != 0);
    uint32_t gate = atomic_fetch_sub(&team->gate, GATE_ONE_INSIDE) - GATE_ONE_INSIDE;
    if (is_over(team, gate)) {
        wake_sleepers(team);
    }
}

static void bind_to_cpu(int cpu)
{
    size_t bytes = CPU_ALLOC_SIZE(cpu + 1);
    cpu_set_t *set = CPU_ALLOC(cpu + 1);
    if (set != NULL) {
        CPU_ZERO_S(bytes, set);
        CPU_SET_S(cpu, bytes, set);
        /* Binds the thread. If a container's policy refuses this, it costs speed, not results. */
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
    MOE_ASSERT(self->index > 0 && self->index < team->n_threads);
    for (uint32_t generation = 0;;) {
        generation = enter(team, generation);
        if (team->stop) {
            return NULL;
        }
        team->fn(team->arg, self->index, team->n_threads);
        leave(team);
    }
}

/* Call only when the last generation is over. */
static void open_gate(moe_team *team)
{
    uint32_t gate = atomic_load_explicit(&team->gate, memory_order_relaxed);
    MOE_ASSERT(is_over(team, gate)); /* one caller at a time */
    uint32_t generation = gate - gate % GATE_GENERATION + GATE_GENERATION;
    atomic_store(&team->gate, generation | GATE_OPEN);
    wake_sleepers(team);
}

/* Called when some workers have not come. Returns true if they have been absent for long; the time
 * then starts again. */
static bool is_long_absence(moe_team *team)
{
    uint64_t now = moe_now_ns();
    if (team->absent_since == 0) {
        team->absent_since = now;
    }
    if (now - team->absent_since < ABSENCE_NS) {
        return false;
    }
    team->absent_since = 0;
    return true;
}

/* Called by the caller after its own share of the work. Closes the gate to workers that have not
 * entered, unless they have been absent for long; then waits until the generation is over. */
static void close_gate(moe_team *team)
{
    uint32_t spins = 0;
    uint64_t deadline = 0;
    uint32_t gate = atomic_load_explicit(&team->gate, memory_order_acquire);
    if (all_came(team, gate)) {
        team->absent_since = 0;
    } else if (!is_long_absence(team)) {
        gate = atomic_fetch_and(&team->gate, ~GATE_OPEN) & ~GATE_OPEN;
    }
    while (!is_over(team, gate)) {
        wait_a_little(team, gate, &spins, &deadline);
        gate = atomic_load_explicit(&team->gate, memory_order_acquire);
    }
}

void moe_team_run(moe_team *team, moe_team_fn fn, void *arg)
{
    MOE_ASSERT(fn != NULL && team->n_threads >= 1);
    if (team->n_threads == 1) {
        fn(arg, 0, 1);
        return;
    }
    team->fn = fn;
    team->arg = arg;
    open_gate(team);
    fn(arg, 0, team->n_threads);
    close_gate(team);
}

static void stop_workers(moe_team *team, uint32_t n_started)
{
    team->stop = true;
    open_gate(team);
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

/* Whether workers may be bound to cores: not if the process has only a share of the cores' time. If
 * every such process bound its workers to the first cores, all would compete for them. */
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
