/* SPDX-License-Identifier: MIT */
/* Measuring storage: every I/O engine reads the requested bytes, equal seeds give equal ranges, the
 * result says when the page cache was dropped, and what cannot be measured is refused with the
 * reason. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <moe/lab.h>
#include <moe/moe.h>

#include "tests/io/io_fixture.h"

#define FILE_BYTES ((4u << 20) + 777u)

static moe_storage_test small_test(const io_file *file)
{
    moe_storage_test test;
    moe_storage_test_init(&test);
    test.path = file->path;
    test.block_bytes = 64u << 10;
    test.depth = 4;
    test.range_min_bytes = 30000;
    test.range_max_bytes = 200000;
    test.total_bytes = 3u << 20;
    test.seed = 7;
    return test;
}

static void test_engines(void **state)
{
    static const moe_io_kind kinds[] = {MOE_IO_URING, MOE_IO_THREADS, MOE_IO_SYNC};
    static const char *const names[] = {"uring", "threads", "sync"};
    io_file *file = *state;
    uint64_t n_ranges = 0;
    for (int i = 0; i < 6; i++) {
        moe_storage_test test = small_test(file);
        moe_storage_speed speed = {.struct_size = sizeof speed};
        moe_error err = {""};
        test.io = kinds[i % 3];
        test.buffered = i >= 3;
        test.registered = i == 0;
        assert_int_equal(moe_storage_measure(&test, &speed, &err), MOE_OK);
        if (i % 3 != 0) { /* io_uring may be refused here, and threads take its place */
            assert_non_null(strstr(speed.how, names[i % 3]));
        }
        assert_true(speed.bytes_per_s > 0 && speed.seconds > 0 && speed.cpu_s_per_gb >= 0);
        assert_true(speed.bytes_read >= test.total_bytes);
        assert_true(speed.bytes_read < test.total_bytes + (1u << 20));
        assert_true(speed.n_reads >= speed.n_ranges && speed.n_ranges > 15);
        assert_false(test.buffered && speed.direct);
        /* The same ranges, whoever reads them. */
        assert_true(n_ranges == 0 || n_ranges == speed.n_ranges);
        n_ranges = speed.n_ranges;
    }
}

/* fsync first: dirty pages stay. */
static void test_cold(void **state)
{
    io_file *file = *state;
    moe_storage_test test = small_test(file);
    moe_storage_speed speed = {.struct_size = sizeof speed};
    static char bytes[FILE_BYTES];
    assert_int_equal(fsync(file->fd), 0);
    assert_int_equal(pread(file->fd, bytes, sizeof bytes, 0), sizeof bytes);
    assert_int_equal(moe_storage_measure(&test, &speed, NULL), MOE_OK);
    if (!speed.direct) {
        skip(); /* a file system in memory: its pages are the file */
    }
    assert_true(speed.cached_share >= 0 && speed.cached_share < 0.05);
    test.max_seconds = 1e-9;
    test.total_bytes = 1u << 30;
    assert_int_equal(moe_storage_measure(&test, &speed, NULL), MOE_OK);
    assert_true(speed.n_ranges >= 1 && speed.n_ranges < 100);
}

static void test_refused(void **state)
{
    io_file *file = *state;
    moe_storage_speed speed = {.struct_size = sizeof speed};
    moe_error err;
    const struct {
        moe_storage_test test;
        const char *words;
    } cases[] = {
        {{0}, "moe_storage_test: struct_size is 0"},
        {{.struct_size = sizeof(moe_storage_test)}, "name a file"},
        {{sizeof(moe_storage_test), .path = "no-such-file"}, "no-such-file: No such file"},
        {{sizeof(moe_storage_test), .path = "."}, "not a regular file"},
        {{sizeof(moe_storage_test), .path = file->path, .io = (moe_io_kind)7}, "io is 7"},
        {{sizeof(moe_storage_test), .path = file->path, .depth = 5000}, "a depth of 5000"},
        {{sizeof(moe_storage_test), .path = file->path, .range_max_bytes = 8u << 20}, "bytes of a"},
        {{sizeof(moe_storage_test), .path = file->path, .range_min_bytes = 200,
          .range_max_bytes = 100},
         "ranges of 200 to 100"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_true(moe_storage_measure(&cases[i].test, &speed, &err) < 0);
        assert_non_null(strstr(err.message, cases[i].words));
    }
}

/* Defaults fit a file that is smaller than they would be. */
static void test_defaults(void **state)
{
    io_file *file = *state;
    moe_storage_test test;
    moe_storage_speed speed = {.struct_size = sizeof speed};
    moe_storage_test_init(&test);
    test.path = file->path;
    test.total_bytes = 8u << 20;
    assert_int_equal(moe_storage_measure(&test, &speed, NULL), MOE_OK);
    assert_true(speed.n_ranges >= 4 && speed.n_ranges <= 9);
}

int main(void)
{
    io_file file;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(test_engines, &file),
        cmocka_unit_test_prestate(test_cold, &file),
        cmocka_unit_test_prestate(test_refused, &file),
        cmocka_unit_test_prestate(test_defaults, &file),
    };
    io_file_create(&file, FILE_BYTES, 5);
    int failed = cmocka_run_group_tests_name("storage speed", tests, NULL, NULL);
    io_file_remove(&file);
    return failed;
}
