/* SPDX-License-Identifier: MIT */
/* What the machine says about itself: parsers on made-up trees, and invariants on this machine. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/host/memory_limits.h"
#include "runtime/host/sysfs.h"
#include "runtime/host/team.h"
#include "runtime/host/topology.h"
#include "tests/host/test_host.h"

static void test_sysfs(void **state)
{
    (void)state;
    char line[64];
    uint64_t value = 42;
    assert_false(moe_sysfs_read_u64(&value, "/proc/self/%s", "no-such-file"));
    assert_false(moe_sysfs_read_u64(&value, "/proc/self/status"));
    assert_int_equal(value, 42);
    assert_true(moe_sysfs_read_line(line, sizeof line, "/proc/self/%s", "comm"));
    assert_null(strchr(line, '\n'));
    assert_true(moe_sysfs_find_u64("A: 1\nTotal:\t  77 kB\n", "Total:", &value));
    assert_int_equal(value, 77);
    assert_false(moe_sysfs_find_u64("A: 1\nTotal: -\n", "Total:", &value));
    assert_false(moe_sysfs_find_u64("A: 1\nxTotal: 3", "Total:", &value));
}

static void test_topology_invariants(void **state)
{
    (void)state;
    moe_topology topology;
    moe_error err;
    assert_int_equal(moe_topology_read(&topology, &err), MOE_OK);
    assert_true(topology.n_usable_cores >= 1);
    assert_true(topology.n_usable_cores <= topology.n_cores);
    assert_true(topology.n_usable_cpus <= topology.n_cpus);
    assert_true(topology.n_cores <= topology.n_cpus);
    assert_true(moe_topology_default_threads(&topology) <= topology.n_usable_cores);
    for (uint32_t i = 0; i < topology.n_usable_cores; i++) {
        cpu_set_t set;
        assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
        assert_true(CPU_ISSET(topology.usable_cores[i].cpu, &set));
    }
    moe_topology_free(&topology);
    assert_null(topology.usable_cores);
}

/* A process that may use one CPU is told of one core. */
static void test_topology_affinity(void **state)
{
    (void)state;
    cpu_set_t before;
    cpu_set_t one;
    moe_topology topology;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    int cpu = 0;
    while (!CPU_ISSET(cpu, &before)) {
        cpu++;
    }
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(moe_topology_read(&topology, NULL), MOE_OK);
    moe_team *team = NULL;
    assert_int_equal(moe_team_create(&team, 0, NULL), MOE_OK);
    assert_int_equal(moe_team_size(team), 1);
    moe_team_destroy(&team);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    assert_int_equal(topology.n_usable_cores, 1);
    assert_int_equal(topology.n_usable_cpus, 1);
    assert_int_equal(topology.usable_cores[0].cpu, cpu);
    assert_int_equal(moe_topology_default_threads(&topology), 1);
    moe_topology_free(&topology);
}

static void test_default_threads_follow_quota(void **state)
{
    (void)state;
    moe_topology topology = {.n_usable_cores = 8};
    assert_int_equal(moe_topology_default_threads(&topology), 8);
    topology.cpu_quota = 2.5;
    assert_int_equal(moe_topology_default_threads(&topology), 3);
    topology.cpu_quota = 0.1;
    assert_int_equal(moe_topology_default_threads(&topology), 1);
    topology.cpu_quota = 16;
    assert_int_equal(moe_topology_default_threads(&topology), 8);
}

/* Without /proc (here: without a descriptor to open it with) memory is known all the same. */
static void test_memory_without_proc(void **state)
{
    (void)state;
    char text[64];
    struct rlimit kept;
    uint64_t limit = moe_memory_limit();
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &kept), 0);
    struct rlimit none = {0, kept.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    bool readable = moe_sysfs_read(text, sizeof text, "/proc/meminfo");
    uint64_t available = moe_memory_available();
    uint64_t limit_without = moe_memory_limit();
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &kept), 0);
    assert_false(readable);
    assert_true(available > 0 && available < limit_without);
    assert_true(limit_without != UINT64_MAX && limit_without >= limit / 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sysfs),
        cmocka_unit_test(test_topology_invariants),
        cmocka_unit_test(test_topology_affinity),
        cmocka_unit_test(test_default_threads_follow_quota),
        cmocka_unit_test(test_memory_without_proc),
        cmocka_unit_test(test_cgroup_v1),
        cmocka_unit_test(test_cgroup_v2),
        cmocka_unit_test(test_cgroup_hybrid),
        cmocka_unit_test(test_cgroup_container),
        cmocka_unit_test(test_cgroup_absent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
