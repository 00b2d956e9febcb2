/* SPDX-License-Identifier: MIT */
/* What the kernel's side of io_uring may do, caused for real: the linker wraps the calls of
 * liburing. Reads turn into NOPs whose completions carry an error (IORING_NOP_INJECT_RESULT), waits
 * return without a completion, submissions are refused, the CQ has its least size. Skipped (77)
 * without io_uring. */
#include <errno.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offload/io/io_engine.h"
#include "tests/io/io_fixture.h"

/* Kernel 6.10 has them, the headers of liburing 2.3 do not. */
#define NOP_INJECT_RESULT 1
#define WAIT_NS           20000000000

/* What the wrapped calls do; of one thread. */
static struct {
    uint64_t dice;
    uint32_t inject_per_mille; /* of reads */
    uint32_t inject_left;      /* so many at most */
    int inject_error;          /* 0: drawn from those that pass */
    uint32_t idle_per_mille;   /* of waits: they return without a completion */
    uint32_t refuse_per_mille; /* of submissions */
    uint32_t sq_entries;       /* not 0: of the next ring, whatever it asks for */
    bool least_cq;             /* the next ring's CQ is as large as its SQ */
    /* what was done */
    uint32_t n_injected, n_idle, n_refused;
    uint32_t cq_entries;
    uint32_t n_overflows; /* calls after which the kernel had to keep completions elsewhere */
} ring;

static void reset(void)
{
    memset(&ring, 0, sizeof ring);
    ring.dice = 88172645463325252u;
}

static bool draw(uint32_t per_mille)
{
    return (io_random(&ring.dice) >> 8) % 1000 < per_mille;
}

static void become_nop(struct io_uring_sqe *sqe)
{
    static const int passing[] = {EAGAIN, EINTR, ECANCELED, 0};
    int error =
        ring.inject_error != 0 ? ring.inject_error : passing[io_random(&ring.dice) >> 8 & 3];
    uint64_t user_data = sqe->user_data;
    memset(sqe, 0, sizeof *sqe);
    sqe->opcode = IORING_OP_NOP;
    sqe->rw_flags = NOP_INJECT_RESULT;
    sqe->len = (uint32_t)-error;
    sqe->user_data = user_data;
    ring.n_injected++;
    ring.inject_left--;
}

static void spoil_reads(struct io_uring *r)
{
    for (unsigned i = r->sq.sqe_head; i != r->sq.sqe_tail; i++) {
        struct io_uring_sqe *sqe = &r->sq.sqes[i & r->sq.ring_mask];
        bool is_read = sqe->opcode == IORING_OP_READ || sqe->opcode == IORING_OP_READ_FIXED;
        if (is_read && ring.inject_left > 0 && draw(ring.inject_per_mille)) {
            become_nop(sqe);
        }
    }
}

static int look_at(struct io_uring *r, int rc)
{
    ring.n_overflows += *r->cq.koverflow > 0 || (*r->sq.kflags & IORING_SQ_CQ_OVERFLOW) != 0;
    return rc;
}

int __real_io_uring_queue_init_params(unsigned entries, struct io_uring *r,
                                      struct io_uring_params *p);
int __real_io_uring_submit(struct io_uring *r);
int __real_io_uring_submit_and_wait_timeout(struct io_uring *r, struct io_uring_cqe **cqe,
                                            unsigned n, struct __kernel_timespec *timeout,
                                            sigset_t *mask);
int __wrap_io_uring_queue_init_params(unsigned entries, struct io_uring *r,
                                      struct io_uring_params *p);
int __wrap_io_uring_submit(struct io_uring *r);
int __wrap_io_uring_submit_and_wait_timeout(struct io_uring *r, struct io_uring_cqe **cqe,
                                            unsigned n, struct __kernel_timespec *timeout,
                                            sigset_t *mask);

int __wrap_io_uring_queue_init_params(unsigned entries, struct io_uring *r,
                                      struct io_uring_params *p)
{
    entries = ring.sq_entries > 0 ? ring.sq_entries : entries;
    p->cq_entries = ring.least_cq ? entries : p->cq_entries; /* fewer are refused */
    int rc = __real_io_uring_queue_init_params(entries, r, p);
    ring.cq_entries = rc == 0 ? r->cq.ring_entries : 0;
    return rc;
}

int __wrap_io_uring_submit(struct io_uring *r)
{
    if (draw(ring.refuse_per_mille)) {
        ring.n_refused++;
        return draw(500) ? -EAGAIN : -EBUSY;
    }
    spoil_reads(r);
    return look_at(r, __real_io_uring_submit(r));
}

int __wrap_io_uring_submit_and_wait_timeout(struct io_uring *r, struct io_uring_cqe **cqe,
                                            unsigned n, struct __kernel_timespec *timeout,
                                            sigset_t *mask)
{
    spoil_reads(r);
    if (draw(ring.idle_per_mille)) {
        ring.n_idle++;
        return draw(500) ? __real_io_uring_submit(r) : -EINTR;
    }
    return look_at(r, __real_io_uring_submit_and_wait_timeout(r, cqe, n, timeout, mask));
}

/* Whether the kernel makes up results. */
static bool has_injection(void)
{
    struct io_uring r;
    struct io_uring_cqe *cqe;
    struct io_uring_params p = {0};
    if (__real_io_uring_queue_init_params(4, &r, &p) != 0) {
        return false;
    }
    struct io_uring_sqe *sqe = io_uring_get_sqe(&r);
    ring.inject_error = EXDEV;
    become_nop(sqe);
    bool has =
        __real_io_uring_submit(&r) == 1 && io_uring_wait_cqe(&r, &cqe) == 0 && cqe->res == -EXDEV;
    io_uring_queue_exit(&r);
    reset();
    return has;
}

typedef struct tally {
    uint32_t n_ok, n_failed;
    moe_range_reader_stats stats;
} tally;

/* Random ranges, many at a time; each is reported once, with its bytes or with an error. */
static tally read_many(io_fixture *f, uint32_t n, uint64_t seed)
{
    struct {
        uint32_t file;
        uint64_t offset, size;
        bool used;
    } ranges[12] = {{0}};
    tally t = {0};
    io_fixture_open(f);
    io_fixture_slots(f, 12, 1u << 19);
    for (uint32_t n_submitted = 0, n_done = 0; n_done < n;) {
        for (uint32_t slot = 0; slot < 12 && n_submitted < n; slot++) {
            if (!ranges[slot].used) {
                ranges[slot].used = true;
                ranges[slot].file = io_random(&seed) >> 8 & 1;
                ranges[slot].size = 1 + (io_random(&seed) >> 8) % (1u << 19);
                ranges[slot].offset = (io_random(&seed) >> 8) %
                                      (f->files[ranges[slot].file].size - ranges[slot].size);
                assert_true(
                    io_submit(f, slot, ranges[slot].file, ranges[slot].offset, ranges[slot].size));
                n_submitted++;
            }
        }
        moe_range_done done;
        assert_int_equal(moe_range_reader_wait(f->reader, &done, 1, WAIT_NS), 1);
        assert_true(ranges[done.tag].used);
        ranges[done.tag].used = false;
        n_done++;
        if (done.status == MOE_OK) {
            io_check_bytes(f, &done, ranges[done.tag].file, ranges[done.tag].offset,
                           ranges[done.tag].size);
            t.n_ok++;
        } else {
            assert_int_equal(done.status, MOE_ERR_IO);
            assert_non_null(strstr(done.error.message, f->files[ranges[done.tag].file].path));
            t.n_failed++;
        }
    }
    moe_range_done none;
    assert_int_equal(moe_range_reader_wait(f->reader, &none, 1, 1000000), 0);
    moe_range_reader_get_stats(f->reader, &t.stats);
    assert_int_equal(t.stats.n_errors, t.n_failed);
    io_fixture_close(f);
    return t;
}

/* Each error that passes, so many times: that many reads are repeated, and the bytes are right. */
static void test_passing(io_fixture *f)
{
    static const int passing[] = {EAGAIN, EINTR, ECANCELED};
    if (!has_injection()) {
        skip();
    }
    for (size_t i = 0; i < 3; i++) {
        reset();
        ring.inject_error = passing[i];
        ring.inject_per_mille = 1000;
        ring.inject_left = 7;
        tally t = read_many(f, 20, 3 + i);
        assert_int_equal(ring.n_injected, 7);
        assert_int_equal(t.stats.n_retries, 7);
        assert_int_equal(t.n_ok, 20);
        assert_int_equal(f->n_log, 0);
    }
}

static void test_random(io_fixture *f)
{
    if (!has_injection()) {
        skip();
    }
    reset();
    ring.inject_per_mille = 300;
    ring.inject_left = UINT32_MAX;
    ring.idle_per_mille = 300;
    ring.refuse_per_mille = 100;
    tally t = read_many(f, 600, 99);
    print_message("%u completions, %u idle waits and %u refusals made up in %llu reads\n",
                  ring.n_injected, ring.n_idle, ring.n_refused,
                  (unsigned long long)t.stats.n_reads);
    assert_true(ring.n_injected > 200 && ring.n_idle > 0 && ring.n_refused > 30);
    assert_true(t.n_failed < 30); /* a block that was unlucky so many times in a row */
    assert_true(t.stats.n_retries >= ring.n_injected);
}

static void test_lasting(io_fixture *f)
{
    if (!has_injection()) {
        skip();
    }
    reset();
    ring.inject_error = EIO;
    ring.inject_per_mille = 1000;
    ring.inject_left = UINT32_MAX;
    tally t = read_many(f, 12, 5);
    assert_int_equal(t.n_failed, 12);
    assert_true(t.stats.n_reads == ring.n_injected && ring.n_injected < 12 * 6 * 6);
}

/* Waits that return without a completion, as signals make them. */
static void test_idle_waits(io_fixture *f)
{
    reset();
    ring.idle_per_mille = 900;
    tally t = read_many(f, 60, 8);
    assert_true(ring.n_idle > 0);
    assert_int_equal(t.n_ok, 60);
    assert_int_equal(t.stats.n_retries, 0);
}

/* Reads, the eventfd and a cancellation fill the CQ to the last entry, and not beyond. */
static void test_full_cq(io_fixture *f)
{
    reset();
    ring.least_cq = true;
    f->options.depth = 14;
    f->options.block_bytes = 8192;
    tally t = read_many(f, 100, 21);
    assert_int_equal(ring.cq_entries, 16);
    assert_int_equal(t.n_ok, 100);
    assert_int_equal(ring.n_overflows, 0);
}

/* Whoever asks an engine for more than it has room for is told how much was taken. */
static void test_capped(io_fixture *f)
{
    static uint8_t buffer[40 * 4096] __attribute__((aligned(4096)));
    void *engine;
    moe_io_completion done[40];
    moe_io_read reads[40];
    reset();
    ring.least_cq = true;
    moe_io_params params = {.files = f->range_files, .n_files = 1, .depth = 14};
    assert_int_equal(moe_io_uring_ops.open(&engine, &params, NULL), MOE_OK);
    for (uint32_t i = 0; i < 40; i++) {
        reads[i] = (moe_io_read){.offset = (uint64_t)i * 4096,
                                 .size = 4096,
                                 .dst = buffer + (size_t)i * 4096,
                                 .user_data = i};
    }
    uint64_t seen = 0;
    for (uint32_t n_taken = 0; seen != (UINT64_C(1) << 40) - 1;) {
        uint32_t n_before = n_taken;
        n_taken += moe_io_uring_ops.submit(engine, reads + n_taken, 40 - n_taken);
        assert_in_range(n_taken - n_before, n_before < 40 ? 1 : 0, 14);
        assert_int_equal(moe_io_uring_ops.submit(engine, reads + n_taken, 40 - n_taken), 0);
        moe_io_uring_ops.wake(engine);
        bool woken = false;
        for (uint32_t n_done = 0; n_done < n_taken - n_before;) {
            uint32_t n = moe_io_uring_ops.wait(engine, done, 40, WAIT_NS, &woken);
            for (uint32_t i = 0; i < n; i++) {
                assert_false(seen >> done[i].user_data & 1);
                assert_int_equal(done[i].result, 4096);
                seen |= UINT64_C(1) << done[i].user_data;
            }
            n_done += n;
        }
        assert_true(woken || n_taken == n_before);
    }
    assert_memory_equal(buffer, f->files[0].bytes, sizeof buffer);
    assert_int_equal(ring.n_overflows, 0);
    assert_true(moe_io_uring_ops.close(engine, 1000000000));
}

/* A ring that the kernel made too small is no ring. */
static void test_too_small(io_fixture *f)
{
    reset();
    ring.sq_entries = 8;
    f->options.depth = 14;
    moe_error err;
    assert_int_equal(moe_range_reader_open(&f->reader, &f->options, &err), MOE_ERR_UNSUPPORTED);
    f->options.kind = MOE_IO_AUTO;
    io_fixture_open(f);
    char text[128];
    moe_range_reader_describe(f->reader, text, sizeof text);
    assert_non_null(strstr(text, "threads"));
    assert_int_equal(f->n_log, 1);
    io_fixture_slots(f, 1, 100000);
    moe_range_done done = io_read_one(f, 0, 777, 100000);
    io_check_bytes(f, &done, 0, 777, 100000);
    io_fixture_close(f);
}

static bool is_bare_ring(const io_variant *variant)
{
    return variant->kind == MOE_IO_URING && !variant->wrapped;
}

int main(void)
{
    static const io_case cases[] = {
        {"EAGAIN, EINTR, ECANCELED in a completion", test_passing},
        {"completions, waits and submissions at random", test_random},
        {"EIO in every completion", test_lasting},
        {"waits without a completion", test_idle_waits},
        {"full CQ", test_full_cq},
        {"in flight no more than the CQ holds", test_capped},
        {"ring too small", test_too_small},
    };
    struct io_uring r;
    struct io_uring_params p = {0};
    reset();
    if (__real_io_uring_queue_init_params(4, &r, &p) != 0) {
        return 77;
    }
    io_uring_queue_exit(&r);
    return io_run_cases("io ring", cases, sizeof cases / sizeof cases[0], is_bare_ring);
}
