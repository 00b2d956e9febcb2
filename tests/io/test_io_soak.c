/* SPDX-License-Identifier: MIT */
/* Random faults on random reads, until so many have been injected (first argument): no wrong byte,
 * nothing reported twice or never, no sum that does not add up, no hang. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/clock.h"
#include "tests/io/io_fixture.h"

#define MAX_BYTES 300000u
#define HANG_NS   20000000000

typedef struct soak {
    uint64_t seed;
    uint32_t per_mille; /* of reads that get a fault */
    bool refuse_direct;
    bool errors_only;
} soak;

static moe_fault choose(void *user, const moe_io_read *read, uint64_t n)
{
    static const int errors[] = {EIO, EAGAIN, EINTR, ECANCELED, 0, ENOMEM};
    soak *s = user;
    (void)n;
    uint64_t dice = io_random(&s->seed) >> 8;
    if (s->refuse_direct && read->direct && dice % 100 == 0) {
        return (moe_fault){MOE_FAULT_ERROR, EINVAL};
    }
    if (dice % 1000 >= s->per_mille) {
        return (moe_fault){MOE_FAULT_NONE, 0};
    }
    dice = io_random(&s->seed) >> 8;
    switch (s->errors_only ? 1 : dice % 4) {
    case 0:
        return (moe_fault){MOE_FAULT_SHORT, (uint32_t)(dice >> 8) % read->size};
    case 1:
        return (moe_fault){MOE_FAULT_ERROR, (uint32_t)errors[(dice >> 8) % 6]};
    case 2:
        return (moe_fault){MOE_FAULT_DELAY, (uint32_t)(dice >> 8) % 300000};
    default:
        return (moe_fault){MOE_FAULT_TWICE, 0};
    }
}

typedef struct flying {
    bool used;
    bool cancelled;
    uint32_t file;
    uint64_t offset;
    uint64_t size;
} flying;

typedef struct tally {
    uint64_t n_submitted, n_ok, n_failed, n_cancelled, bytes;
} tally;

static void submit_random(io_fixture *f, soak *s, flying *ranges, tally *t)
{
    for (uint32_t slot = 0; slot < f->n_slots; slot++) {
        flying *r = &ranges[slot];
        if (r->used) {
            continue;
        }
        *r = (flying){.used = true, .file = io_random(&s->seed) % 2};
        r->size = io_random(&s->seed) % MAX_BYTES;
        r->offset = io_random(&s->seed) % (f->files[r->file].size - r->size + 1);
        if (io_random(&s->seed) % 16 == 0) {
            r->offset = f->files[r->file].size - r->size;
        }
        memset(f->slots[slot].memory, 0x5a, f->slots[slot].bytes);
        assert_true(io_submit(f, slot, r->file, r->offset, r->size));
        t->n_submitted++;
        t->bytes += r->size;
        if (io_random(&s->seed) % 32 == 0) {
            moe_range_reader_cancel(f->reader, slot);
            r->cancelled = true;
        }
    }
}

static void take_reports(io_fixture *f, flying *ranges, tally *t)
{
    moe_range_done done[8];
    uint32_t n = moe_range_reader_wait(f->reader, done, 8, HANG_NS);
    assert_true(n > 0);
    for (uint32_t i = 0; i < n; i++) {
        flying *r = &ranges[done[i].tag];
        assert_true(r->used);
        r->used = false;
        if (done[i].status == MOE_OK) {
            io_check_bytes(f, &done[i], r->file, r->offset, r->size);
            t->n_ok++;
        } else if (done[i].status == MOE_ERR_CANCELLED) {
            assert_true(r->cancelled);
            t->n_cancelled++;
        } else {
            assert_int_equal(done[i].status, MOE_ERR_IO);
            assert_true(done[i].error.message[0] != '\0');
            t->n_failed++;
        }
    }
}

static bool has_flying(const flying *ranges)
{
    for (uint32_t i = 0; i < IO_MAX_SLOTS; i++) {
        if (ranges[i].used) {
            return true;
        }
    }
    return false;
}

/* One reader's life: about 400 ranges; in every fourth one, mostly errors. */
static void live(io_fixture *f, soak *s, uint32_t index, tally *total)
{
    flying ranges[IO_MAX_SLOTS] = {{0}};
    tally t = {0};
    s->errors_only = index % 4 == 3;
    s->per_mille = s->errors_only ? 900 : 50 + io_random(&s->seed) % 700;
    s->refuse_direct = io_random(&s->seed) % 4 == 0;
    f->options.block_bytes = 4096u << io_random(&s->seed) % 6;
    f->options.depth = 1 + io_random(&s->seed) % 24;
    f->n_log = 0;
    io_fixture_open(f);
    io_fixture_slots(f, 1 + io_random(&s->seed) % 32, MAX_BYTES);
    while (t.n_submitted < 400) {
        submit_random(f, s, ranges, &t);
        take_reports(f, ranges, &t);
    }
    bool drain = io_random(&s->seed) % 4 != 0;
    while (drain && has_flying(ranges)) {
        take_reports(f, ranges, &t);
    }
    moe_range_reader_stats stats;
    moe_range_reader_get_stats(f->reader, &stats);
    assert_int_equal(stats.bytes_requested, t.bytes);
    assert_int_equal(stats.n_errors, t.n_failed);
    assert_true(stats.n_retries <= stats.n_reads);
    assert_true(f->n_log <= 1);
    if (drain) {
        assert_int_equal(t.n_submitted, t.n_ok + t.n_failed + t.n_cancelled);
    }
    io_fixture_close(f);
    total->n_ok += t.n_ok;
    total->n_failed += t.n_failed;
    total->n_cancelled += t.n_cancelled;
    total->bytes += stats.bytes_read;
}

/* set by main(), before the tests */
static uint64_t wanted_faults = 10000;

static uint64_t n_injected(const io_fixture *f)
{
    uint64_t n = 0;
    for (int kind = MOE_FAULT_NONE + 1; kind < MOE_FAULT_KINDS; kind++) {
        n += f->fault.n_faults[kind];
    }
    return n;
}

static void test_soak(io_fixture *f)
{
    soak s = {.seed = 88172645463325252u};
    tally total = {0};
    uint64_t start = moe_now_ns();
    f->fault.choose = choose;
    f->fault.user = &s;
    for (uint32_t i = 0; i < 4 || n_injected(f) < wanted_faults / 3; i++) {
        live(f, &s, i, &total);
    }
    assert_true(total.n_ok > 0 && total.n_failed > 0 && total.n_cancelled > 0);
    print_message("%s: %llu faults in %llu reads, %llu ranges whole, %llu failed, %llu cancelled, "
                  "%.1f s\n",
                  f->variant->name, (unsigned long long)n_injected(f),
                  (unsigned long long)f->fault.n_reads, (unsigned long long)total.n_ok,
                  (unsigned long long)total.n_failed, (unsigned long long)total.n_cancelled,
                  (double)(moe_now_ns() - start) / 1e9);
}

static bool is_wrapped(const io_variant *variant)
{
    return variant->wrapped;
}

int main(int argc, char **argv)
{
    static const io_case cases[] = {{"soak", test_soak}};
    if (argc > 1) {
        wanted_faults = strtoull(argv[1], NULL, 10);
    }
    return io_run_cases("io soak", cases, 1, is_wrapped);
}
