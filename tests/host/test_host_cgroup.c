/* SPDX-License-Identifier: MIT */
/* Control groups read from made-up /proc and /sys trees. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/host/cgroup.h"
#include "tests/host/test_host.h"

typedef struct fake_file {
    const char *path;
    const char *text;
} fake_file;

static void make_parents(char *path)
{
    for (char *at = path + 1; (at = strchr(at, '/')) != NULL; at++) {
        *at = '\0';
        assert_true(mkdir(path, 0755) == 0 || errno == EEXIST);
        *at = '/';
    }
}

static void read_fake(moe_cgroup_limits *limits, const fake_file *files, size_t n)
{
    char root[] = "/tmp/moe_cgroup_XXXXXX";
    char path[512];
    char command[64];
    assert_non_null(mkdtemp(root));
    for (size_t i = 0; i < n; i++) {
        snprintf(path, sizeof path, "%s%s", root, files[i].path);
        make_parents(path);
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        fputs(files[i].text, file);
        fclose(file);
    }
    moe_cgroup_read(limits, root);
    snprintf(command, sizeof command, "rm -rf %s", root);
    assert_int_equal(system(command), 0);
}

#define READ_FAKE(limits, files) read_fake(limits, files, sizeof files / sizeof files[0])

void test_cgroup_v1(void **state)
{
    (void)state;
    static const fake_file files[] = {
        {"/proc/self/cgroup", "5:pids:/other\n4:memory:/jobs/a\n3:cpu,cpuacct:/jobs\n"},
        {"/proc/self/mountinfo",
         "30 29 0:30 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
         "31 29 0:31 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n"},
        {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"},
        {"/sys/fs/cgroup/memory/memory.usage_in_bytes", "99\n"},
        {"/sys/fs/cgroup/memory/jobs/memory.limit_in_bytes", "1000000\n"},
        {"/sys/fs/cgroup/memory/jobs/memory.usage_in_bytes", "700000\n"},
        {"/sys/fs/cgroup/memory/jobs/memory.stat",
         "cache 1\ninactive_file 7\ntotal_inactive_file 200000\n"},
        {"/sys/fs/cgroup/memory/jobs/a/memory.limit_in_bytes", "900000\n"},
        {"/sys/fs/cgroup/memory/jobs/a/memory.usage_in_bytes", "10\n"},
        {"/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n"},
        {"/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"},
        {"/sys/fs/cgroup/cpu,cpuacct/jobs/cpu.cfs_quota_us", "150000\n"},
        {"/sys/fs/cgroup/cpu,cpuacct/jobs/cpu.cfs_period_us", "100000\n"},
    };
    moe_cgroup_limits limits;
    READ_FAKE(&limits, files);
    assert_int_equal(limits.memory_version, 1);
    assert_true(limits.memory_limited);
    assert_int_equal(limits.memory_limit, 1000000);
    assert_int_equal(limits.memory_used, 500000);
    assert_string_equal(limits.memory_group, "/jobs");
    assert_true(limits.cpu_quota == 1.5);
}

void test_cgroup_v2(void **state)
{
    (void)state;
    static const fake_file files[] = {
        {"/proc/self/cgroup", "0::/user.slice/run\n"},
        {"/proc/self/mountinfo", "31 29 0:31 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"},
        {"/sys/fs/cgroup/user.slice/memory.max", "5000\n"},
        {"/sys/fs/cgroup/user.slice/memory.current", "1\n"},
        {"/sys/fs/cgroup/user.slice/run/memory.max", "4000\n"},
        {"/sys/fs/cgroup/user.slice/run/memory.current", "3000\n"},
        {"/sys/fs/cgroup/user.slice/run/memory.stat", "anon 1\ninactive_file 1000\n"},
        {"/sys/fs/cgroup/user.slice/run/cpu.max", "max 100000\n"},
        {"/sys/fs/cgroup/user.slice/cpu.max", "200000 100000\n"},
    };
    moe_cgroup_limits limits;
    READ_FAKE(&limits, files);
    assert_int_equal(limits.memory_version, 2);
    assert_true(limits.memory_limited);
    assert_int_equal(limits.memory_limit, 4000);
    assert_int_equal(limits.memory_used, 2000);
    assert_string_equal(limits.memory_group, "/user.slice/run");
    assert_int_equal(moe_cgroup_memory_left(&limits), 2000);
    assert_true(limits.cpu_quota == 2.0);
}

/* The v2 tree is mounted, but the memory controller is in v1. */
void test_cgroup_hybrid(void **state)
{
    (void)state;
    static const fake_file files[] = {
        {"/proc/self/cgroup", "2:memory:/\n0::/\n"},
        {"/proc/self/mountinfo",
         "40 29 0:40 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
         "41 29 0:41 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"},
        {"/sys/fs/cgroup/unified/cgroup.procs", "1\n"},
        {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "123456\n"},
        {"/sys/fs/cgroup/memory/memory.usage_in_bytes", "23456\n"},
    };
    moe_cgroup_limits limits;
    READ_FAKE(&limits, files);
    assert_int_equal(limits.memory_version, 1);
    assert_int_equal(limits.memory_limit, 123456);
    assert_int_equal(limits.memory_used, 23456);
    assert_string_equal(limits.memory_group, "/");
}

/* A container that is shown its own subtree as the top of the mount. */
void test_cgroup_container(void **state)
{
    (void)state;
    static const fake_file files[] = {
        {"/proc/self/cgroup", "0::/docker/abc\n"},
        {"/proc/self/mountinfo", "41 29 0:41 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n"},
        {"/sys/fs/cgroup/memory.max", "777\n"},
        {"/sys/fs/cgroup/memory.current", "7\n"},
        {"/sys/fs/cgroup/cpu.max", "50000 100000\n"},
    };
    moe_cgroup_limits limits;
    READ_FAKE(&limits, files);
    assert_true(limits.memory_limited);
    assert_int_equal(limits.memory_limit, 777);
    assert_true(limits.cpu_quota == 0.5);
}

void test_cgroup_absent(void **state)
{
    (void)state;
    static const fake_file files[] = {{"/proc/self/cgroup", "garbage\n::\n0\n"}};
    moe_cgroup_limits limits;
    READ_FAKE(&limits, files);
    assert_int_equal(limits.memory_version, 0);
    assert_false(limits.memory_limited);
    assert_true(limits.cpu_quota == 0);
}
