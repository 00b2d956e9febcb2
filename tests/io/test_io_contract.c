/* SPDX-License-Identifier: MIT */
/* What a range reader promises, on every engine, bare and wrapped in the fault engine. */
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "runtime/base/clock.h"
#include "tests/io/io_fixture.h"
#include "tests/test_size.h"

#define FOREVER (-1)

typedef struct flying {
    uint32_t file;
    uint64_t offset;
    uint64_t size;
    bool used;
} flying;

/* Reads n random ranges, as many at a time as there are slots, and checks each. Returns the bytes
 * asked for. */
static uint64_t read_randomly(io_fixture *f, uint32_t n, uint64_t max_bytes, uint64_t seed)
{
    flying ranges[IO_MAX_SLOTS] = {{0}};
    uint32_t submitted = 0;
    uint32_t reported = 0;
    uint64_t bytes = 0;
    while (reported < n) {
        for (uint32_t slot = 0; slot < f->n_slots && submitted < n; slot++) {
            flying *r = &ranges[slot];
            if (r->used) {
                continue;
            }
            r->file = io_random(&seed) % 2;
            r->size = io_random(&seed) % (max_bytes + 1);
            r->offset = io_random(&seed) % (f->files[r->file].size - r->size + 1);
            r->used = true;
            memset(f->slots[slot].memory, 0x5a, f->slots[slot].bytes);
            assert_true(io_submit(f, slot, r->file, r->offset, r->size));
            submitted++;
            bytes += r->size;
        }
        moe_range_done done[3];
        uint32_t got = moe_range_reader_wait(f->reader, done, 3, FOREVER);
        for (uint32_t i = 0; i < got; i++) {
            flying *r = &ranges[done[i].tag];
            assert_true(r->used);
            r->used = false;
            io_check_bytes(f, &done[i], r->file, r->offset, r->size);
        }
        reported += got;
    }
    return bytes;
}

/* Of so many rounds. */
static uint32_t slice(uint32_t n)
{
    return test_is_small() ? n / 8 : n;
}

static void test_random_ranges(io_fixture *f)
{
    io_fixture_open(f);
    io_fixture_slots(f, 24, 1u << 20);
    uint64_t bytes = read_randomly(f, slice(400), 1u << 20, 4711);
    moe_range_reader_stats stats;
    moe_range_reader_get_stats(f->reader, &stats);
    assert_int_equal(stats.bytes_requested, bytes);
    assert_true(stats.bytes_read >= bytes);
    assert_true(stats.bytes_read <= bytes + 400 * 2 * moe_range_reader_alignment(f->reader));
    assert_true(stats.n_reads >= bytes / (f->options.block_bytes * 3 / 2));
    assert_int_equal(stats.n_errors, 0);
    assert_int_equal(f->n_log, 0);
    io_fixture_close(f);
}

/* Every offset and size at which something changes: alignment units, blocks, the file's end. */
static void test_edges(io_fixture *f)
{
    io_fixture_open(f);
    io_fixture_slots(f, 1, 600000);
    uint64_t end = f->files[0].size;
    uint64_t block = f->options.block_bytes;
    const uint64_t offsets[] = {0,          1,          511,        512,         513,
                                4095,       4096,       4097,       block - 1,   block,
                                block + 1,  end - 1,    end - 511,  end - 1237,  end - 1238,
                                end - 4096, end - 5333, end - 5334, end - block, end - block - 1,
                                end};
    const uint64_t sizes[] = {0,         1,         2,         511,           512,
                              4095,      4096,      4097,      8192,          block - 1,
                              block,     block + 1, 2 * block, 3 * block + 5, 4 * block + 4096,
                              UINT64_MAX};
    for (size_t i = 0; i < sizeof offsets / sizeof offsets[0]; i++) {
        for (size_t j = 0; j < sizeof sizes / sizeof sizes[0]; j++) {
            if (test_leaves_out((uint32_t)(i + j), 5)) {
                continue;
            }
            uint64_t left = end - offsets[i];
            uint64_t size = sizes[j] == UINT64_MAX && left <= 600000 ? left : sizes[j];
            if (size > left) {
                continue;
            }
            moe_range_done done = io_read_one(f, 0, offsets[i], size);
            io_check_bytes(f, &done, 0, offsets[i], size);
        }
    }
    io_fixture_close(f);
}

static void test_refused_ranges(io_fixture *f)
{
    io_fixture_open(f);
    io_fixture_slots(f, 1, 8192);
    uint64_t end = f->files[0].size;
    const moe_range bad[] = {
        {.file = 0, .offset = end, .size = 1},        {.file = 0, .offset = end + 1, .size = 0},
        {.file = 0, .offset = 5, .size = UINT64_MAX}, {.file = 0, .offset = UINT64_MAX, .size = 2},
        {.file = 2, .offset = 0, .size = 1},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        moe_range range = bad[i];
        moe_range_done done;
        range.buffer = f->slots[0].memory;
        range.tag = i;
        assert_true(moe_range_reader_submit(f->reader, &range));
        assert_int_equal(moe_range_reader_wait(f->reader, &done, 1, FOREVER), 1);
        assert_int_equal(done.status, MOE_ERR_ARGUMENT);
        assert_int_equal(done.tag, i);
        assert_null(done.data);
        assert_true(done.error.message[0] != '\0');
    }
    moe_range range = {.file = 0, .size = 4000, .buffer = f->slots[0].memory + 8};
    moe_range_done done;
    assert_true(moe_range_reader_submit(f->reader, &range));
    assert_int_equal(moe_range_reader_wait(f->reader, &done, 1, FOREVER), 1);
    assert_int_equal(done.status, MOE_ERR_ARGUMENT);
    assert_non_null(strstr(done.error.message, "4096"));
    io_fixture_close(f);
}

/* Many more blocks than the depth, and no more ranges than agreed. */
static void test_more_than_depth(io_fixture *f)
{
    f->options.max_ranges = 48;
    f->options.depth = 3;
    f->options.block_bytes = 8192;
    io_fixture_open(f);
    io_fixture_slots(f, 49, 100000);
    for (uint32_t i = 0; i < 48; i++) {
        assert_true(io_submit(f, i, i % 2, i * 70001u, 100000));
    }
    assert_false(io_submit(f, 48, 0, 0, 100));
    uint64_t seen = 0;
    for (uint32_t n = 0; n < 48;) {
        moe_range_done done[64];
        uint32_t got = moe_range_reader_wait(f->reader, done, 64, FOREVER);
        assert_true(got > 0);
        for (uint32_t i = 0; i < got; i++) {
            assert_false(seen >> done[i].tag & 1);
            seen |= (uint64_t)1 << done[i].tag;
            io_check_bytes(f, &done[i], done[i].tag % 2, done[i].tag * 70001u, 100000);
        }
        n += got;
    }
    assert_true(io_submit(f, 48, 0, 0, 100));
    moe_range_done done;
    assert_int_equal(moe_range_reader_wait(f->reader, &done, 1, 0) +
                         moe_range_reader_wait(f->reader, &done, 1, 100000000),
                     1);
    io_check_bytes(f, &done, 0, 0, 100);
    io_fixture_close(f);
}

static void test_extreme_shapes(io_fixture *f)
{
    const struct {
        uint32_t block_bytes, depth;
    } shapes[] = {{1, 1}, {4096, 64}, {12288, 5}, {64u << 20, 2}, {0, 0}, {5000, 1000}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        f->options.block_bytes = shapes[i].block_bytes;
        f->options.depth = shapes[i].depth;
        io_fixture_open(f);
        io_fixture_slots(f, 4, 3u << 19);
        read_randomly(f, 12, 3u << 19, 99 + i);
        io_fixture_close(f);
    }
}

/* Before, between and after: with one block in flight at a time, each stage is there to be met. */
static void test_cancel(io_fixture *f)
{
    f->options.depth = 1;
    f->options.block_bytes = 16384;
    io_fixture_open(f);
    io_fixture_slots(f, 4, 1u << 20);
    assert_true(io_submit(f, 0, 0, 100, 1u << 20)); /* its first block is in flight */
    assert_true(io_submit(f, 1, 1, 200, 1u << 20)); /* nothing of it is */
    assert_true(io_submit(f, 2, 0, 300, 1000));
    moe_range_reader_cancel(f->reader, 1);
    moe_range_reader_cancel(f->reader, 0);
    moe_range_reader_cancel(f->reader, 77);
    bool reported[3] = {false, false, false};
    for (uint32_t n = 0; n < 3;) {
        moe_range_done done[4];
        uint32_t got = moe_range_reader_wait(f->reader, done, 4, FOREVER);
        for (uint32_t i = 0; i < got; i++, n++) {
            assert_false(reported[done[i].tag]);
            reported[done[i].tag] = true;
            if (done[i].tag == 2) {
                io_check_bytes(f, &done[i], 0, 300, 1000);
            } else {
                assert_int_equal(done[i].status, MOE_ERR_CANCELLED);
                assert_null(done[i].data);
            }
        }
    }
    moe_range_reader_stats stats;
    moe_range_reader_get_stats(f->reader, &stats);
    assert_int_equal(stats.n_reads, 2);
    assert_int_equal(stats.n_errors, 0);
    /* All of a one-block range is in flight: it is read, and reported as read. */
    assert_true(io_submit(f, 3, 1, 4000, 5000));
    moe_range_reader_cancel(f->reader, 3);
    moe_range_done done;
    assert_int_equal(moe_range_reader_wait(f->reader, &done, 1, FOREVER), 1);
    io_check_bytes(f, &done, 1, 4000, 5000);
    moe_range_reader_cancel(f->reader, 3); /* reported: unknown */
    assert_int_equal(moe_range_reader_wait(f->reader, &done, 1, 0), 0);
    io_fixture_close(f);
}

static void test_timeout(io_fixture *f)
{
    io_fixture_open(f);
    moe_range_done done;
    uint64_t start = moe_now_ns();
    assert_int_equal(moe_range_reader_wait(f->reader, &done, 1, 0), 0);
    assert_int_equal(moe_range_reader_wait(f->reader, &done, 1, 30000000), 0);
    uint64_t waited = moe_now_ns() - start;
    assert_true(waited >= 30000000);
    assert_true(waited < 120000000000);
    io_fixture_close(f);
}

typedef struct waker {
    moe_range_reader *reader;
    uint32_t n;
    useconds_t pause_us;
} waker;

static void *wake_main(void *argument)
{
    waker *w = argument;
    for (uint32_t i = 0; i < w->n; i++) {
        usleep(w->pause_us);
        moe_range_reader_wake(w->reader);
    }
    return NULL;
}

static void test_wake(io_fixture *f)
{
    io_fixture_open(f);
    io_fixture_slots(f, 8, 1u << 18);
    moe_range_done done;
    moe_range_reader_wake(f->reader); /* before the wait */
    moe_range_reader_wake(f->reader); /* is one */
    assert_int_equal(moe_range_reader_wait(f->reader, &done, 1, FOREVER), 0);
    assert_int_equal(moe_range_reader_wait(f->reader, &done, 1, 1000000), 0);
    for (int i = 0; i < 20; i++) { /* during it */
        waker one = {f->reader, 1, 2000};
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, wake_main, &one), 0);
        assert_int_equal(moe_range_reader_wait(f->reader, &done, 1, FOREVER), 0);
        pthread_join(thread, NULL);
    }
    waker many = {f->reader, slice(300), 100}; /* and while reading */
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, wake_main, &many), 0);
    }
    read_randomly(f, slice(200), 1u << 18, 5);
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
    }
    io_fixture_close(f);
}

/* After close() nobody writes into the buffers any more. */
static void test_close_in_flight(io_fixture *f)
{
    f->options.depth = 64;
    f->options.block_bytes = 1u << 18;
    for (int i = 0; i < (test_is_small() ? 2 : 10); i++) {
        io_fixture_open(f);
        io_fixture_slots(f, 16, 1u << 20);
        for (uint32_t slot = 0; slot < 16; slot++) {
            assert_true(io_submit(f, slot, 0, slot * 12345u, 1u << 20));
        }
        moe_range_done done;
        if (i % 2 == 1) {
            moe_range_reader_wait(f->reader, &done, 1, FOREVER);
        }
        assert_true(moe_range_reader_close(&f->reader));
        const io_guarded *last = &f->slots[15];
        memset(last->memory, 0x5a, last->bytes);
        usleep(10000);
        for (size_t at = 0; at < last->bytes; at++) {
            assert_int_equal(last->memory[at], 0x5a);
        }
        io_fixture_close(f); /* what is left: the slots */
    }
}

static void *read_elsewhere(void *argument)
{
    io_fixture *f = argument;
    read_randomly(f, slice(50), 1u << 18, 31);
    return NULL;
}

/* Opened and closed by one thread, owned by another. */
static void test_other_thread(io_fixture *f)
{
    io_fixture_open(f);
    io_fixture_slots(f, 8, 1u << 18);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, read_elsewhere, f), 0);
    pthread_join(thread, NULL);
    io_fixture_close(f);
}

static void on_alarm(int number)
{
    (void)number;
}

/* Waits that end early, without a completion, are no completions. */
static void test_signal_storm(io_fixture *f)
{
    io_fixture_open(f);
    io_fixture_slots(f, 16, 1u << 19);
    struct sigaction action = {.sa_handler = on_alarm}; /* without SA_RESTART */
    struct sigaction before;
    sigaction(SIGALRM, &action, &before);
    struct itimerval storm = {.it_interval = {0, 150}, .it_value = {0, 150}};
    struct itimerval calm = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &storm, NULL);
    read_randomly(f, slice(300), 1u << 19, 1234567);
    moe_range_done done;
    uint64_t start = moe_now_ns();
    uint32_t n = moe_range_reader_wait(f->reader, &done, 1, 20000000);
    uint64_t waited = moe_now_ns() - start;
    setitimer(ITIMER_REAL, &calm, NULL);
    sigaction(SIGALRM, &before, NULL);
    assert_int_equal(n, 0);
    assert_true(waited >= 20000000);
    io_fixture_close(f);
}

/* One byte behind its buffer, a slot's memory ends: see io_guarded. The slots are registered with
 * the kernel where it can. */
static void test_guard_page(io_fixture *f)
{
    for (uint64_t size = 1; size < 400000; size = size * 3 + 1) {
        io_fixture_open(f);
        io_guarded buffer;
        io_guarded_create(&buffer, moe_range_buffer_bytes(f->reader, size));
        moe_range_reader_use_arena(f->reader, buffer.memory, buffer.bytes);
        f->slots[0] = buffer;
        f->n_slots = 1;
        for (uint64_t offset = 0; offset < 8192; offset += 4096 / 3) {
            moe_range_done done = io_read_one(f, 0, offset, size);
            io_check_bytes(f, &done, 0, offset, size);
            uint64_t at = f->files[0].size - size - (offset < 4096 ? 0 : 4096);
            done = io_read_one(f, 0, at, size);
            io_check_bytes(f, &done, 0, at, size);
        }
        io_fixture_close(f);
    }
}

static void test_truncated(io_fixture *f)
{
    io_fixture_open(f);
    io_fixture_slots(f, 1, 1u << 20);
    const uint64_t cuts[] = {8u << 20, (8u << 20) - 4000, (8u << 20) - 131, 1};
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        assert_int_equal(ftruncate(f->files[0].fd, (off_t)cuts[i]), 0);
        moe_range_done done = io_read_one(f, 0, (8u << 20) - 300000, 1u << 19);
        assert_int_equal(done.status, MOE_ERR_IO);
        assert_null(done.data);
        assert_non_null(strstr(done.error.message, f->files[0].path));
        assert_non_null(strstr(done.error.message, "truncated"));
        char number[32];
        snprintf(number, sizeof number, " %llu,", (unsigned long long)cuts[i]);
        assert_non_null(strstr(done.error.message, number));
        done = io_read_one(f, 1, 1000, 5000); /* the other file is as good as before */
        io_check_bytes(f, &done, 1, 1000, 5000);
    }
    moe_range_done done = io_read_one(f, 0, 0, 1);
    io_check_bytes(f, &done, 0, 0, 1);
    assert_int_equal(f->n_log, 0);
    io_fixture_close(f);
}

/* Another file under the same name, before and after the reader is opened: what is read is the file
 * that the caller opened. */
static void test_replaced(io_fixture *f)
{
    assert_int_equal(rename(f->files[1].path, f->files[0].path), 0);
    io_fixture_open(f);
    io_fixture_slots(f, 4, 1u << 18);
    assert_int_equal(unlink(f->files[0].path), 0);
    read_randomly(f, 40, 1u << 18, 17);
    io_fixture_close(f);
}

/* The caller may let the files go as soon as the reader is open. */
static void test_own_descriptors(io_fixture *f)
{
    io_fixture_open(f);
    io_fixture_slots(f, 4, 1u << 18);
    moe_byte_source_let_go(&f->range_files[0]);
    moe_byte_source_let_go(&f->range_files[1]);
    read_randomly(f, 20, 1u << 18, 171);
    io_fixture_close(f);
}

static void test_describe(io_fixture *f)
{
    io_fixture_open(f);
    char text[128];
    moe_range_reader_describe(f->reader, text, sizeof text);
    assert_non_null(strstr(text, f->variant->wrapped ? "fault injection" : f->variant->ops->name));
    assert_non_null(strstr(text, f->variant->buffered ? "buffered" : "O_DIRECT"));
    assert_non_null(strstr(text, "8 x 128 KiB"));
    io_fixture_close(f);
}

static _Atomic uint64_t n_allocations;

void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_malloc(size_t size)
{
    atomic_fetch_add(&n_allocations, 1);
    return __real_malloc(size);
}

void *__real_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size)
{
    atomic_fetch_add(&n_allocations, 1);
    return __real_calloc(count, size);
}

static void test_no_allocation(io_fixture *f)
{
    uint64_t at_first = atomic_load(&n_allocations);
    io_fixture_open(f);
    io_fixture_slots(f, 8, 1u << 18);
    uint64_t before = atomic_load(&n_allocations);
    assert_true(before > at_first); /* else nothing is counted */
    for (uint32_t i = 0; i < 40; i++) {
        moe_range_done done;
        assert_true(io_submit(f, 0, 0, i * 77777u, 1u << 18));
        while (moe_range_reader_wait(f->reader, &done, 1, FOREVER) == 0) {
        }
        assert_int_equal(done.status, MOE_OK);
    }
    assert_int_equal(atomic_load(&n_allocations), before);
    io_fixture_close(f);
}

static const io_case cases[] = {
    {"random ranges are the file's bytes", test_random_ranges},
    {"offsets and sizes at every edge", test_edges},
    {"ranges that cannot be are refused", test_refused_ranges},
    {"more ranges than depth, each reported once", test_more_than_depth},
    {"extreme blocks and depths", test_extreme_shapes},
    {"cancelled at every stage", test_cancel},
    {"timeout", test_timeout},
    {"wake before, during and between", test_wake},
    {"closed with reads in flight", test_close_in_flight},
    {"opened by another thread", test_other_thread},
    {"timer signals during waits", test_signal_storm},
    {"page behind the buffer is not touched", test_guard_page},
    {"file truncated while open", test_truncated},
    {"file replaced", test_replaced},
    {"descriptors are the reader's own", test_own_descriptors},
    {"description", test_describe},
    {"nothing is allocated while reading", test_no_allocation},
};

int main(void)
{
    return io_run_cases("io contract", cases, sizeof cases / sizeof cases[0], NULL);
}
