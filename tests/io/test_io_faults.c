/* SPDX-License-Identifier: MIT */
/* How the reader handles faults: each row of the fault table that belongs to this layer, on every
 * engine. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/clock.h"
#include "tests/io/io_fixture.h"

#define FOREVER (-1)
#define MS      1000000

/* The fault that reads get: all from read `from` on, `n` of them. */
typedef struct script {
    moe_fault fault;
    uint64_t from;
    uint64_t n;
    bool only_direct;     /* only direct reads */
    uint64_t only_offset; /* not 0: reads that begin there */
} script;

static moe_fault follow_script(void *user, const moe_io_read *read, uint64_t n)
{
    const script *s = user;
    bool hit = n >= s->from && n - s->from < s->n && (!s->only_direct || read->direct) &&
               (s->only_offset == 0 || read->offset == s->only_offset);
    return hit ? s->fault : (moe_fault){MOE_FAULT_NONE, 0};
}

static void open_with(io_fixture *f, script *s)
{
    f->fault.choose = follow_script;
    f->fault.user = s;
    io_fixture_open(f);
}

static moe_range_reader_stats stats_of(const io_fixture *f)
{
    moe_range_reader_stats stats;
    moe_range_reader_get_stats(f->reader, &stats);
    return stats;
}

/* A range in five blocks, unaligned at both ends. */
#define OFFSET 70001u
#define SIZE   600000u

static void read_well(io_fixture *f)
{
    if (f->n_slots == 0) {
        io_fixture_slots(f, 4, SIZE);
    }
    moe_range_done done = io_read_one(f, 0, OFFSET, SIZE);
    io_check_bytes(f, &done, 0, OFFSET, SIZE);
}

/* The error names the file, where, and why; a second range is read as if nothing had been. */
static void read_badly(io_fixture *f, script *s, const char *reason)
{
    io_fixture_slots(f, 4, SIZE);
    uint64_t start = moe_now_ns();
    moe_range_done done = io_read_one(f, 0, OFFSET, SIZE);
    assert_true(moe_now_ns() - start < 120000ull * MS);
    assert_int_equal(done.status, MOE_ERR_IO);
    assert_null(done.data);
    assert_non_null(strstr(done.error.message, f->files[0].path));
    assert_non_null(strstr(done.error.message, "offset"));
    assert_non_null(strstr(done.error.message, reason));
    assert_int_equal(stats_of(f).n_errors, 1);
    s->n = 0;
    read_well(f);
    assert_int_equal(stats_of(f).n_errors, 1);
}

static void test_short_once(io_fixture *f)
{
    const uint32_t values[] = {1, 511, 512, 4095, 4096, 4097, 50000, 119999, 122879};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        script s = {.fault = {MOE_FAULT_SHORT, values[i]}, .from = i % 5, .n = 1};
        f->fault.n_reads = 0;
        open_with(f, &s);
        read_well(f);
        assert_int_equal(stats_of(f).n_short, 1);
        assert_int_equal(stats_of(f).n_retries, 1);
        assert_int_equal(stats_of(f).n_reads, 6);
        assert_int_equal(f->n_log, 0);
        io_fixture_close(f);
    }
}

static void test_short_always(io_fixture *f)
{
    script s = {.fault = {MOE_FAULT_SHORT, 5000}, .n = UINT64_MAX};
    open_with(f, &s);
    read_well(f);
    moe_range_reader_stats stats = stats_of(f);
    assert_true(stats.n_short >= SIZE / 5000);
    assert_true(stats.n_reads <= SIZE / 4096 + 10); /* a page of progress each */
    assert_int_equal(f->n_log, 0);
    io_fixture_close(f);
}

/* Less than a sector each time: direct reads get nowhere, buffered ones do. */
static void test_short_of_a_sector(io_fixture *f)
{
    script s = {.fault = {MOE_FAULT_SHORT, 900}, .n = UINT64_MAX};
    open_with(f, &s);
    read_well(f);
    assert_int_equal(f->n_log, 1);
    io_fixture_close(f);
}

static void test_nothing_once(io_fixture *f)
{
    script s = {.fault = {MOE_FAULT_ERROR, 0}, .from = 2, .n = 1};
    open_with(f, &s);
    read_well(f);
    assert_int_equal(stats_of(f).n_short, 1);
    assert_int_equal(f->n_log, 0);
    io_fixture_close(f);
}

static void test_nothing_ever(io_fixture *f)
{
    script s = {.fault = {MOE_FAULT_ERROR, 0}, .n = UINT64_MAX};
    open_with(f, &s);
    read_badly(f, &s, "return nothing");
    assert_true(stats_of(f).n_reads < 100);
    io_fixture_close(f);
}

static void test_eio_once(io_fixture *f)
{
    script s = {.fault = {MOE_FAULT_ERROR, EIO}, .from = 1, .n = 1};
    open_with(f, &s);
    read_well(f);
    assert_int_equal(stats_of(f).n_retries, 1);
    io_fixture_close(f);
}

static void test_eio_ever(io_fixture *f)
{
    script s = {.fault = {MOE_FAULT_ERROR, EIO}, .n = UINT64_MAX};
    open_with(f, &s);
    read_badly(f, &s, strerror(EIO));
    assert_true(stats_of(f).n_reads <= 5 * 5 + 5);
    io_fixture_close(f);
}

/* Where no other block of the test begins. */
#define BAD_OFFSET 1089536u

/* One block of one range is broken: its range fails once, those beside it are whole. */
static void test_bad_block(io_fixture *f)
{
    script s = {.fault = {MOE_FAULT_ERROR, EIO}, .n = UINT64_MAX, .only_offset = BAD_OFFSET};
    open_with(f, &s);
    io_fixture_slots(f, 10, 1u << 18);
    for (uint32_t i = 0; i < 10; i++) {
        assert_true(io_submit(f, i, i == 5 ? 0 : 1, i == 5 ? BAD_OFFSET : (i << 18) + 1, 1u << 18));
    }
    for (uint32_t n = 0; n < 10; n++) {
        moe_range_done done;
        assert_int_equal(moe_range_reader_wait(f->reader, &done, 1, 120000ll * MS), 1);
        if (done.tag == 5) {
            assert_int_equal(done.status, MOE_ERR_IO);
            assert_non_null(strstr(done.error.message, "1089536"));
        } else {
            io_check_bytes(f, &done, 1, (done.tag << 18) + 1, 1u << 18);
        }
    }
    assert_int_equal(stats_of(f).n_errors, 1);
    io_fixture_close(f);
}

static const int transients[] = {EAGAIN, EINTR, ECANCELED};

static void test_transient(io_fixture *f)
{
    for (size_t i = 0; i < 3; i++) {
        for (uint64_t n = 1; n <= 8; n += 7) {
            script s = {.fault = {MOE_FAULT_ERROR, (uint32_t)transients[i]}, .n = n};
            f->fault.n_reads = 0;
            open_with(f, &s);
            read_well(f);
            assert_int_equal(stats_of(f).n_retries, n);
            assert_int_equal(f->n_log, 0);
            io_fixture_close(f);
        }
    }
}

static void test_transient_ever(io_fixture *f)
{
    for (size_t i = 0; i < 3; i++) {
        script s = {.fault = {MOE_FAULT_ERROR, (uint32_t)transients[i]}, .n = UINT64_MAX};
        open_with(f, &s);
        read_badly(f, &s, strerror(transients[i]));
        io_fixture_close(f);
    }
}

/* O_DIRECT that opens and then refuses to read: the same bytes through the page cache, told once
 * for both files. */
static void test_direct_refused(io_fixture *f)
{
    const int refusals[] = {EINVAL, EOPNOTSUPP};
    for (size_t i = 0; i < 2; i++) {
        script s = {.fault = {MOE_FAULT_ERROR, (uint32_t)refusals[i]},
                    .n = UINT64_MAX,
                    .only_direct = true};
        f->n_log = 0;
        open_with(f, &s);
        read_well(f);
        moe_range_done done = io_read_one(f, 1, 333, 200000);
        io_check_bytes(f, &done, 1, 333, 200000);
        assert_int_equal(f->n_log, 1);
        assert_non_null(strstr(f->log[0], "page cache"));
        assert_non_null(strstr(f->log[0], strerror(refusals[i])));
        char text[128];
        moe_range_reader_describe(f->reader, text, sizeof text);
        assert_non_null(strstr(text, "buffered"));
        io_fixture_close(f);
    }
}

/* The same refusal of buffered reads is an error like others. */
static void test_invalid_ever(io_fixture *f)
{
    script s = {.fault = {MOE_FAULT_ERROR, EINVAL}, .n = UINT64_MAX};
    open_with(f, &s);
    read_badly(f, &s, strerror(EINVAL));
    io_fixture_close(f);
}

static moe_fault delay_some(void *user, const moe_io_read *read, uint64_t n)
{
    (void)user;
    (void)read;
    return (moe_fault){MOE_FAULT_DELAY, n % 3 == 0 ? 3 * MS : n % 3 == 1 ? MS / 10 : 0};
}

static void test_out_of_order(io_fixture *f)
{
    f->fault.choose = delay_some;
    io_fixture_open(f);
    io_fixture_slots(f, 16, SIZE);
    for (uint32_t i = 0; i < 16; i++) {
        assert_true(io_submit(f, i, i % 2, OFFSET + i * 4001u, SIZE));
    }
    for (uint32_t n = 0; n < 16; n++) {
        moe_range_done done;
        assert_int_equal(moe_range_reader_wait(f->reader, &done, 1, 120000ll * MS), 1);
        io_check_bytes(f, &done, done.tag % 2, OFFSET + done.tag * 4001u, SIZE);
    }
    io_fixture_close(f);
}

/* Waits come back at their timeout until the disk answers, and then with the range. */
static void test_slow_disk(io_fixture *f)
{
    script s = {.fault = {MOE_FAULT_STUCK, 0}, .n = UINT64_MAX};
    atomic_store(&f->fault.let_go, false);
    open_with(f, &s);
    io_fixture_slots(f, 1, SIZE);
    assert_true(io_submit(f, 0, 0, OFFSET, SIZE));
    moe_range_done done;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(moe_range_reader_wait(f->reader, &done, 1, 5 * MS), 0);
    }
    atomic_store(&f->fault.let_go, true);
    assert_int_equal(moe_range_reader_wait(f->reader, &done, 1, FOREVER), 1);
    io_check_bytes(f, &done, 0, OFFSET, SIZE);
    atomic_store(&f->fault.let_go, false);
    moe_range_reader_wake(f->reader);
    assert_true(io_submit(f, 0, 0, OFFSET, SIZE));
    assert_int_equal(moe_range_reader_wait(f->reader, &done, 1, FOREVER), 0); /* woken */
    atomic_store(&f->fault.let_go, true);
    assert_int_equal(moe_range_reader_wait(f->reader, &done, 1, FOREVER), 1);
    io_fixture_close(f);
}

/* Bit-rot passes: to find it is the checksum's business, above. That it arrives shows that the
 * fault engine can test that. */
static void test_bit_flip(io_fixture *f)
{
    script s = {.fault = {MOE_FAULT_FLIP, 8 * 2000 + 3}, .from = 0, .n = 1};
    open_with(f, &s);
    io_fixture_slots(f, 1, SIZE);
    moe_range_done done = io_read_one(f, 0, 0, 5000);
    assert_int_equal(done.status, MOE_OK);
    assert_int_equal(done.data[2000] ^ f->files[0].bytes[2000], 8);
    assert_memory_equal(done.data, f->files[0].bytes, 2000);
    assert_memory_equal(done.data + 2001, f->files[0].bytes + 2001, 2999);
    io_fixture_close(f);
}

static void test_answered_twice(io_fixture *f)
{
    script s = {.fault = {MOE_FAULT_TWICE, 0}, .n = UINT64_MAX};
    open_with(f, &s);
    io_fixture_slots(f, 4, SIZE);
    for (int round = 0; round < 10; round++) {
        for (uint32_t i = 0; i < 4; i++) {
            assert_true(io_submit(f, i, 0, OFFSET + i, SIZE));
        }
        for (uint32_t n = 0; n < 4; n++) {
            moe_range_done done;
            assert_int_equal(moe_range_reader_wait(f->reader, &done, 1, 120000ll * MS), 1);
            io_check_bytes(f, &done, 0, OFFSET + done.tag, SIZE);
        }
    }
    moe_range_done done;
    assert_int_equal(moe_range_reader_wait(f->reader, &done, 1, MS), 0);
    io_fixture_close(f);
}

/* A device that never answers: waits end at their timeout, the other ranges are read, close()
 * gives up and says so. */
static void test_lost(io_fixture *f)
{
    script s = {.fault = {MOE_FAULT_LOST, 0}, .n = 1};
    f->options.close_timeout_ms = 100;
    open_with(f, &s);
    io_fixture_slots(f, 2, SIZE);
    assert_true(io_submit(f, 0, 0, OFFSET, SIZE));
    assert_true(io_submit(f, 1, 1, OFFSET, SIZE));
    moe_range_done done;
    assert_int_equal(moe_range_reader_wait(f->reader, &done, 1, 120000ll * MS), 1);
    assert_int_equal(done.tag, 1);
    io_check_bytes(f, &done, 1, OFFSET, SIZE);
    moe_range_reader_cancel(f->reader, 0);
    assert_int_equal(moe_range_reader_wait(f->reader, &done, 1, 20 * MS), 0);
    uint64_t start = moe_now_ns();
    assert_false(moe_range_reader_close(&f->reader));
    assert_true(moe_now_ns() - start < 120000ull * MS);
    assert_null(f->reader);
    assert_int_equal(f->n_log, 1);
    assert_non_null(strstr(f->log[0], "buffers"));
    while (f->n_slots > 0) {
        io_guarded_free(&f->slots[--f->n_slots]);
    }
}

/* A range that waits to be asked again ends when it is cancelled, not when its time has come. */
static void test_cancel_between_tries(io_fixture *f)
{
    script s = {.fault = {MOE_FAULT_ERROR, EAGAIN}, .n = UINT64_MAX};
    open_with(f, &s);
    io_fixture_slots(f, 1, SIZE);
    assert_true(io_submit(f, 0, 0, OFFSET, SIZE));
    moe_range_done done;
    assert_int_equal(moe_range_reader_wait(f->reader, &done, 1, 30 * MS), 0);
    moe_range_reader_cancel(f->reader, 0);
    uint64_t reads = stats_of(f).n_reads;
    assert_int_equal(moe_range_reader_wait(f->reader, &done, 1, 120000ll * MS), 1);
    assert_int_equal(done.status, MOE_ERR_CANCELLED);
    assert_int_equal(stats_of(f).n_reads, reads);
    assert_int_equal(stats_of(f).n_errors, 0);
    io_fixture_close(f);
}

/* The engine that was asked for is an error when it is not there; left to choose, the reader takes
 * another, and says so in one line. */
static void test_engine_missing(io_fixture *f)
{
    const int reasons[] = {ENOSYS, EPERM};
    for (size_t i = 0; i < 2; i++) {
        f->fault.open_errno = reasons[i];
        moe_error err;
        moe_range_reader *reader;
        assert_int_equal(moe_range_reader_open(&reader, &f->options, &err), MOE_ERR_UNSUPPORTED);
        assert_null(reader);
        assert_non_null(strstr(err.message, strerror(reasons[i])));
        assert_int_equal(f->n_log, 0);
        moe_io_kind kind = f->options.kind;
        f->options.kind = MOE_IO_AUTO;
        io_fixture_open(f);
        read_well(f);
        char text[128];
        moe_range_reader_describe(f->reader, text, sizeof text);
        assert_non_null(strstr(text, "threads"));
        assert_int_equal(f->n_log, 1);
        assert_non_null(strstr(f->log[0], strerror(reasons[i])));
        assert_non_null(strstr(f->log[0], "threads"));
        io_fixture_close(f);
        f->options.kind = kind;
        f->n_log = 0;
    }
}

static bool is_wrapped(const io_variant *variant)
{
    return variant->wrapped;
}

static const io_case cases[] = {
    {"short read", test_short_once},
    {"every read short", test_short_always},
    {"every read shorter than a sector", test_short_of_a_sector},
    {"result 0 once", test_nothing_once},
    {"result 0 for ever", test_nothing_ever},
    {"EIO once", test_eio_once},
    {"EIO for ever", test_eio_ever},
    {"EIO in one block", test_bad_block},
    {"EAGAIN, EINTR, ECANCELED", test_transient},
    {"EAGAIN, EINTR, ECANCELED for ever", test_transient_ever},
    {"direct reads refused", test_direct_refused},
    {"EINVAL for ever", test_invalid_ever},
    {"out of order", test_out_of_order},
    {"slow disk", test_slow_disk},
    {"bit flip", test_bit_flip},
    {"answered twice", test_answered_twice},
    {"never answered", test_lost},
    {"cancelled between tries", test_cancel_between_tries},
    {"engine missing", test_engine_missing},
};

int main(void)
{
    return io_run_cases("io faults", cases, sizeof cases / sizeof cases[0], is_wrapped);
}
