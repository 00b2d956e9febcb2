/* SPDX-License-Identifier: MIT */
/* The steady state of moving experts, on every I/O engine, over one tier and two: nothing is
 * allocated, and only the link copies bytes of an expert. The linker wraps the calls of allocation
 * and copying functions, so the library's own calls are counted. Usage: test_store_steady
 * MODEL.gguf */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "runtime/engine/engine_state.h"

#define SIM_DEVICE "sim:memory=64M,link=8GB/s,latency=2us"
#define N_PASSES   30u
#define MAX_EXPERT 64u
/* Less than this is bookkeeping: the smallest part of an expert is larger. */
#define LARGE_COPY 2048u

static const char *model_path;
static _Atomic uint64_t n_allocations;
static _Atomic uint64_t bytes_copied; /* in large pieces */

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
void *__real_memcpy(void *restrict to, const void *restrict from, size_t size);
void *__real_memmove(void *to, const void *from, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
void *__wrap_memcpy(void *restrict to, const void *restrict from, size_t size);
void *__wrap_memmove(void *to, const void *from, size_t size);

void *__wrap_malloc(size_t size)
{
    atomic_fetch_add(&n_allocations, 1);
    return __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    atomic_fetch_add(&n_allocations, 1);
    return __real_calloc(count, size);
}

void *__wrap_realloc(void *old, size_t size)
{
    atomic_fetch_add(&n_allocations, 1);
    return __real_realloc(old, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    atomic_fetch_add(&n_allocations, 1);
    return __real_aligned_alloc(alignment, size);
}

void *__wrap_memcpy(void *restrict to, const void *restrict from, size_t size)
{
    atomic_fetch_add(&bytes_copied, size >= LARGE_COPY ? size : 0);
    return __real_memcpy(to, from, size);
}

void *__wrap_memmove(void *to, const void *from, size_t size)
{
    atomic_fetch_add(&bytes_copied, size >= LARGE_COPY ? size : 0);
    return __real_memmove(to, from, size);
}

/* One layer: some experts ahead of need, then others at need, all of them handed over. */
static void pass_layer(moe_engine *engine, uint32_t layer, uint64_t pass, uint64_t *dice)
{
    uint32_t experts[MAX_EXPERT], n_rows[MAX_EXPERT], positions[MAX_EXPERT];
    float gates[MAX_EXPERT];
    moe_expert_view views[MAX_EXPERT];
    uint32_t n = 0;
    for (uint32_t e = 0; e < engine->map.n_expert; e++) {
        *dice = *dice * 6364136223846793005u + 1442695040888963407u;
        if (*dice >> 62 == 0) {
            experts[n] = e;
            n_rows[n] = 1;
            gates[n++] = 1.0f;
        }
    }
    uint32_t first = (uint32_t)(*dice >> 40) % engine->map.n_expert;
    moe_expert_store_prefetch(engine->runner.experts, (layer + 1) % engine->map.n_layer, pass,
                              &first, 1, 2);
    if (n == 0) {
        return;
    }
    moe_layer_request request = {
        .layer = layer, .pass = pass, .experts = experts, .n_rows = n_rows, .gates = gates, .n = n};
    assert_int_equal(moe_expert_store_begin(engine->runner.experts, &request, NULL), MOE_OK);
    for (uint32_t n_ready = 1; n_ready > 0;) {
        assert_int_equal(
            moe_expert_store_next(engine->runner.experts, positions, views, &n_ready, NULL),
            MOE_OK);
    }
}

static void run_passes(moe_engine *engine, uint64_t *dice)
{
    for (uint64_t pass = 0; pass < N_PASSES; pass++) {
        for (uint32_t layer = 0; layer < engine->map.n_layer; layer++) {
            pass_layer(engine, layer, pass, dice);
        }
        moe_expert_store_end_pass(engine->runner.experts, pass);
    }
}

static moe_expert_store_stats settled_stats(moe_engine *engine)
{
    moe_expert_store_stats stats;
    uint64_t moved = UINT64_MAX;
    int n_alike = 0;
    do { /* until prefetches have come to rest; a busy machine may keep the mover waiting */
        moe_expert_store_get_stats(engine->runner.experts, &stats);
        n_alike = stats.bytes_read + stats.bytes_link == moved ? n_alike + 1 : 0;
        moved = stats.bytes_read + stats.bytes_link;
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    } while (n_alike < 10);
    return stats;
}

/* An engine whose store has slots for a third of the experts, in either tier. */
static moe_engine *open_engine(const char *device, moe_io_kind io)
{
    moe_engine_options options;
    moe_engine_options_init(&options);
    options.model_path = model_path;
    options.device = device;
    options.n_threads = 1;
    options.context = 64;
    moe_engine *engine;
    moe_error error;
    if (moe_engine_open(&engine, &options, &error) != MOE_OK) {
        fail_msg("%s", error.message);
    }
    moe_expert_store_options store = {.device = engine->device,
                                      .gguf = engine->gguf,
                                      .map = &engine->map,
                                      .n_expert_used = engine->config.n_expert_used,
                                      .budget_bytes = engine->map.expert_bytes / 3,
                                      .host_budget_bytes = engine->map.expert_bytes / 3,
                                      .policy = engine->policy,
                                      .io = io};
    moe_expert_store_close(&engine->runner.experts);
    if (moe_expert_store_open(&engine->runner.experts, &store, &error) != MOE_OK) {
        fail_msg("%s", error.message);
    }
    return engine;
}

static void check_steady(const char *device, moe_io_kind io)
{
    uint64_t dice = 4711;
    uint64_t allocated = atomic_load(&n_allocations);
    moe_engine *engine = open_engine(device, io);
    assert_true(atomic_load(&n_allocations) > allocated); /* they are counted */
    assert_true(engine->map.n_expert <= MAX_EXPERT);
    run_passes(engine, &dice);
    moe_expert_store_stats before = settled_stats(engine);
    allocated = atomic_load(&n_allocations);
    uint64_t copied = atomic_load(&bytes_copied);
    run_passes(engine, &dice);
    moe_expert_store_stats after = settled_stats(engine);
    allocated = atomic_load(&n_allocations) - allocated;
    copied = atomic_load(&bytes_copied) - copied;
    char how[128];
    moe_expert_store_describe(engine->runner.experts, how, sizeof how);
    print_message("%s, %s: %llu bytes read, %llu over a link, %llu copied, %llu allocations\n",
                  device, how, (unsigned long long)(after.bytes_read - before.bytes_read),
                  (unsigned long long)(after.bytes_link - before.bytes_link),
                  (unsigned long long)copied, (unsigned long long)allocated);
    assert_true(after.bytes_read - before.bytes_read > 1000000);
    assert_int_equal(allocated, 0);
    assert_int_equal(copied, after.bytes_link - before.bytes_link);
    moe_engine_close(&engine);
}

static void one_tier(void **state)
{
    (void)state;
    check_steady("cpu", MOE_IO_AUTO);
    check_steady("cpu", MOE_IO_THREADS);
    check_steady("cpu", MOE_IO_SYNC);
}

/* What the simulated link copies is what is counted: the count works. */
static void two_tiers(void **state)
{
    (void)state;
    check_steady(SIM_DEVICE, MOE_IO_AUTO);
    check_steady(SIM_DEVICE, MOE_IO_THREADS);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: test_store_steady MODEL.gguf\n");
        return 2;
    }
    model_path = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_tier),
        cmocka_unit_test(two_tiers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
