/* SPDX-License-Identifier: MIT */
/* Reading a model from front to back, with every fault below it. Argument: a model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <errno.h>
#include <unistd.h>

#include <cmocka.h>

#include "offload/io/io_fault.h"
#include "offload/model_reader.h"
#include "runtime/base/clock.h"

static moe_gguf *gguf;
static moe_model_range *ranges;
static size_t n_ranges;
static int n_notes;

static void count_notes(const char *line, void *user)
{
    (void)user;
    n_notes += strstr(line, "through the page cache") != NULL;
}

typedef struct plan {
    moe_io_fault fault;
    moe_fault what;
    uint64_t first, every; /* reads that it happens to */
} plan;

static moe_fault choose(void *user, const moe_io_read *read, uint64_t n)
{
    const plan *p = user;
    (void)read;
    bool happens = n >= p->first && (n - p->first) % p->every == 0;
    return happens ? p->what : (moe_fault){MOE_FAULT_NONE, 0};
}

static moe_model_reader_options with_faults(plan *p, moe_fault_kind kind, uint32_t value,
                                            uint64_t first, uint64_t every)
{
    *p = (plan){.fault = {.inner = &moe_io_threads_ops, .choose = choose},
                .what = {kind, value},
                .first = first,
                .every = every};
    p->fault.user = p;
    n_notes = 0;
    return (moe_model_reader_options){
        .gguf = gguf, .io_engine = &moe_io_fault_ops, .io_context = &p->fault, .log = count_notes};
}

/* Every byte of every range from the first-th on, as pread() has them. */
static int compare(moe_model_reader *reader, size_t first, size_t most, moe_error *error)
{
    int status = moe_model_reader_begin(reader, ranges + first, n_ranges - first, error);
    for (size_t i = first; i < n_ranges && status == MOE_OK; i++) {
        const moe_gguf_file *file = moe_gguf_file_at(gguf, ranges[i].file);
        uint8_t *expected = malloc(ranges[i].size);
        assert_int_equal(pread(file->source->fd, expected, ranges[i].size, (off_t)ranges[i].offset),
                         (ssize_t)ranges[i].size);
        for (uint64_t done = 0; done < ranges[i].size && status == MOE_OK;) {
            const uint8_t *bytes;
            size_t n;
            status = moe_model_reader_next(reader, most, &bytes, &n, error);
            if (status == MOE_OK) {
                assert_true(n > 0 && n <= most && n <= ranges[i].size - done);
                assert_memory_equal(bytes, expected + done, n);
                done += n;
            }
        }
        free(expected);
    }
    const uint8_t *bytes;
    size_t n = 0;
    if (status == MOE_OK) {
        assert_int_equal(moe_model_reader_next(reader, most, &bytes, &n, error), MOE_OK);
        assert_int_equal(n, 0);
    }
    return status;
}

static int read_all(const moe_model_reader_options *options, moe_error *error)
{
    moe_model_reader *reader;
    assert_int_equal(moe_model_reader_open(&reader, options, error), MOE_OK);
    int status = compare(reader, 0, SIZE_MAX, error);
    moe_model_reader_close(&reader);
    return status;
}

static void every_engine(void **state)
{
    (void)state;
    const moe_io_kind kinds[] = {MOE_IO_AUTO, MOE_IO_URING, MOE_IO_THREADS, MOE_IO_SYNC};
    for (size_t i = 0; i < 8; i++) {
        moe_model_reader_options options = {
            .gguf = gguf, .io = kinds[i / 2], .buffered = i % 2 == 1};
        moe_error error = {""};
        if (read_all(&options, &error) != MOE_OK && kinds[i / 2] != MOE_IO_URING) {
            fail_msg("engine %zu: %s", i, error.message);
        }
    }
}

/* In small bites, and begun anew in the middle. */
static void begun_again(void **state)
{
    (void)state;
    moe_model_reader_options options = {.gguf = gguf};
    moe_model_reader *reader;
    moe_error error = {""};
    assert_int_equal(moe_model_reader_open(&reader, &options, &error), MOE_OK);
    assert_int_equal(compare(reader, 0, 1000, &error), MOE_OK);
    for (size_t i = 0; i < n_ranges; i += 3) {
        const uint8_t *bytes;
        size_t n;
        assert_int_equal(moe_model_reader_begin(reader, ranges, n_ranges, &error), MOE_OK);
        assert_int_equal(moe_model_reader_next(reader, 100, &bytes, &n, &error), MOE_OK);
        assert_int_equal(compare(reader, i, SIZE_MAX, &error), MOE_OK);
    }
    moe_model_reader_close(&reader);
}

static void mild_faults_change_nothing(void **state)
{
    (void)state;
    const struct {
        moe_fault_kind kind;
        uint32_t value;
        uint64_t every;
        int n_notes; /* -1: none or one */
    } cases[] = {
        {MOE_FAULT_SHORT, 4096, 2, 0},    {MOE_FAULT_SHORT, 100, 5, -1},
        {MOE_FAULT_ERROR, EAGAIN, 2, 0},  {MOE_FAULT_ERROR, EINTR, 3, 0},
        {MOE_FAULT_ERROR, EIO, 7, 0},     {MOE_FAULT_ERROR, EINVAL, 1000000, -1},
        {MOE_FAULT_DELAY, 1000000, 3, 0}, {MOE_FAULT_TWICE, 0, 3, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        plan p;
        moe_error error = {""};
        moe_model_reader_options options =
            with_faults(&p, cases[i].kind, cases[i].value, 0, cases[i].every);
        if (read_all(&options, &error) != MOE_OK) {
            fail_msg("case %zu: %s", i, error.message);
        }
        assert_true(p.fault.n_faults[cases[i].kind] > 0);
        assert_true(cases[i].n_notes < 0 ? n_notes <= 1 : n_notes == 0);
    }
}

/* Where the page cache is not used anyway, direct reads that are refused cost one note. */
static void direct_reads_refused(void **state)
{
    (void)state;
    plan p;
    moe_error error = {""};
    moe_model_reader_options options = with_faults(&p, MOE_FAULT_ERROR, EINVAL, 0, 1);
    p.what.kind = MOE_FAULT_ERROR;
    int status = read_all(&options, &error);
    assert_int_equal(status, MOE_ERR_IO); /* buffered ones, too: that is an error */
    assert_non_null(strstr(error.message, moe_gguf_file_at(gguf, 0)->path));
    assert_true(n_notes <= 1);
}

static void hard_errors_are_named(void **state)
{
    (void)state;
    plan p;
    moe_error error = {""};
    moe_model_reader_options options = with_faults(&p, MOE_FAULT_ERROR, EIO, 3, 1);
    assert_int_equal(read_all(&options, &error), MOE_ERR_IO);
    assert_non_null(strstr(error.message, "Input/output error"));
    assert_non_null(strstr(error.message, moe_gguf_file_at(gguf, 0)->path));
}

static double seconds_since(uint64_t begin)
{
    return (double)(moe_now_ns() - begin) / 1e9;
}

static void hung(void **state)
{
    (void)state;
    plan p;
    moe_error error = {""};
    moe_model_reader_options options = with_faults(&p, MOE_FAULT_STUCK, 0, 2, UINT64_MAX);
    options.io_timeout_ns = 200000000;
    uint64_t begin = moe_now_ns();
    assert_int_equal(read_all(&options, &error), MOE_ERR_IO);
    assert_true(seconds_since(begin) >= 0.2 && seconds_since(begin) < 120.0);
    assert_non_null(strstr(error.message, "has not answered for 0.2 s"));
    assert_non_null(strstr(error.message, moe_gguf_file_at(gguf, 0)->path));
}

static bool after_a_while(void *user)
{
    return seconds_since(*(const uint64_t *)user) > 0.1;
}

static void cancelled_while_hung(void **state)
{
    (void)state;
    plan p;
    moe_error error = {""};
    uint64_t begin = moe_now_ns();
    moe_model_reader_options options = with_faults(&p, MOE_FAULT_STUCK, 0, 0, 1);
    options.is_cancelled = after_a_while;
    options.cancel_user = &begin;
    assert_int_equal(read_all(&options, &error), MOE_ERR_CANCELLED);
    assert_true(seconds_since(begin) < 120.0);
}

static int setup(const char *path)
{
    if (moe_gguf_open(&gguf, path, NULL) != MOE_OK) {
        return -1;
    }
    n_ranges = moe_gguf_n_tensors(gguf);
    ranges = calloc(n_ranges, sizeof *ranges);
    for (size_t i = 0; ranges != NULL && i < n_ranges; i++) {
        const moe_gguf_tensor *tensor = moe_gguf_tensor_at(gguf, i);
        ranges[i] = (moe_model_range){tensor->file_index, tensor->offset, tensor->size};
    }
    return ranges != NULL ? 0 : -1;
}

int main(int argc, char **argv)
{
    if (argc != 2 || setup(argv[1]) != 0) {
        fprintf(stderr, "usage: test_model_reader MODEL.gguf\n");
        return 2;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_engine),
        cmocka_unit_test(begun_again),
        cmocka_unit_test(mild_faults_change_nothing),
        cmocka_unit_test(direct_reads_refused),
        cmocka_unit_test(hard_errors_are_named),
        cmocka_unit_test(hung),
        cmocka_unit_test(cancelled_while_hung),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(ranges);
    moe_gguf_close(&gguf);
    return failed;
}
