/* SPDX-License-Identifier: MIT */
/* The worker team: which thread runs where, that every task is done once, and that no thread waits
 * for an absent worker. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/host/team.h"
#include "runtime/host/topology.h"

typedef struct affinity_job {
    cpu_set_t *sets; /* by worker */
    _Atomic uint32_t n_inside;
} affinity_job;

/* Returns when all workers have come. */
static void note_affinity(void *arg, uint32_t worker, uint32_t n_workers)
{
    affinity_job *job = arg;
    sched_getaffinity(0, sizeof job->sets[worker], &job->sets[worker]);
    atomic_fetch_add(&job->n_inside, 1);
    while (atomic_load(&job->n_inside) < n_workers) {
        sched_yield();
    }
}

/* As many workers as the topology says; each but the caller on its own core, unless the cores' time
 * is shared out by a quota. */
static void test_team_follows_topology(void **state)
{
    (void)state;
    moe_topology topology;
    moe_team *team = NULL;
    assert_int_equal(moe_topology_read(&topology, NULL), MOE_OK);
    uint32_t n = moe_topology_default_threads(&topology);
    bool bound = topology.cpu_quota == 0 || topology.cpu_quota >= topology.n_usable_cores;
    cpu_set_t *sets = calloc(n + 1, sizeof *sets);
    cpu_set_t own;
    assert_non_null(sets);
    assert_int_equal(sched_getaffinity(0, sizeof own, &own), 0);
    assert_int_equal(moe_team_create(&team, 0, NULL), MOE_OK);
    assert_int_equal(moe_team_size(team), n);
    affinity_job job = {.sets = sets};
    moe_team_run(team, note_affinity, &job);
    for (uint32_t w = 1; w < n; w++) {
        assert_int_equal(CPU_COUNT(&sets[w]), bound ? 1 : CPU_COUNT(&own));
        assert_true(CPU_ISSET(topology.usable_cores[w].cpu, &sets[w]));
    }
    moe_team_destroy(&team);
    if (topology.n_usable_cores < 1024) { /* more workers than cores: none is bound */
        n = topology.n_usable_cores + 1;
        sets = reallocarray(sets, n, sizeof *sets);
        assert_non_null(sets);
        assert_int_equal(moe_team_create(&team, n, NULL), MOE_OK);
        job = (affinity_job){.sets = sets};
        moe_team_run(team, note_affinity, &job);
        for (uint32_t w = 0; w < n; w++) {
            assert_true(CPU_EQUAL(&sets[w], &own));
        }
        moe_team_destroy(&team);
    }
    free(sets);
    moe_topology_free(&topology);
}

typedef struct counting_job {
    moe_task_queue queue;
    uint32_t n_tasks;
    _Atomic uint64_t n_done;
    _Atomic uint32_t n_workers; /* that came, the caller not counted */
    _Atomic pid_t thread;       /* of the last of them */
} counting_job;

static void count_tasks(void *arg, uint32_t worker, uint32_t n_workers)
{
    counting_job *job = arg;
    assert_true(worker < n_workers);
    if (worker > 0) {
        atomic_store(&job->thread, (pid_t)syscall(SYS_gettid));
        atomic_fetch_add(&job->n_workers, 1);
    }
    while (moe_task_next(&job->queue) < job->n_tasks) {
        atomic_fetch_add(&job->n_done, 1);
    }
}

/* Tasks are done once each and before the call returns, whoever comes, sleeps or is late. */
static void test_team_does_every_task(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 5; n += 2) {
        moe_team *team = NULL;
        assert_int_equal(moe_team_create(&team, n, NULL), MOE_OK);
        for (uint32_t i = 0; i < 4000; i++) {
            counting_job job = {.n_tasks = i % 40};
            moe_team_run(team, count_tasks, &job);
            assert_int_equal(atomic_load(&job.n_done), job.n_tasks);
            if (i % 500 == 0) { /* longer than they spin */
                const struct timespec rest = {.tv_nsec = 1000000};
                nanosleep(&rest, NULL);
            }
        }
        moe_team_destroy(&team);
    }
}

/* A worker whose core is taken by others is not waited for. */
static void test_team_goes_on_without_the_late(void **state)
{
    (void)state;
    enum { RUNS = 2000 };
    moe_team *team = NULL;
    cpu_set_t kept, one;
    assert_int_equal(moe_team_create(&team, 2, NULL), MOE_OK);
    counting_job job = {.n_tasks = 0};
    while (atomic_load(&job.thread) == 0) {
        moe_team_run(team, count_tasks, &job);
    }
    /* The caller's core for both, and of that only what the caller leaves. */
    assert_int_equal(sched_getaffinity(0, sizeof kept, &kept), 0);
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    const struct sched_param idle = {0};
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(sched_setaffinity(job.thread, sizeof one, &one), 0);
    assert_int_equal(sched_setscheduler(job.thread, SCHED_IDLE, &idle), 0);
    atomic_store(&job.n_workers, 0);
    for (uint32_t i = 0; i < RUNS; i++) {
        moe_team_run(team, count_tasks, &job);
    }
    assert_in_range(atomic_load(&job.n_workers), 0, RUNS / 2);
    assert_int_equal(sched_setaffinity(0, sizeof kept, &kept), 0);
    moe_team_destroy(&team);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_team_follows_topology),
        cmocka_unit_test(test_team_does_every_task),
        cmocka_unit_test(test_team_goes_on_without_the_late),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
