/* SPDX-License-Identifier: MIT */
/* The store under random requests, prefetches and faults: no wrong byte, no hang, and counters that
 * add up; and prefetches that fail at awkward moments.
 * Usage: test_store_soak ORACLE-FOLDER [FAULTS]. */
#include "tests/offload/store_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cache/expert_cache.h"

static char model_path[1024];
static uint32_t n_faults = 12500; /* of each setting */

static moe_expert_store_stats stats_of(store_fixture *f)
{
    moe_expert_store_stats stats;
    moe_expert_store_get_stats(f->engine->runner.experts, &stats);
    return stats;
}

static void begin(store_fixture *f, uint32_t layer, const uint32_t *experts, uint32_t n)
{
    static const uint32_t ones[] = {1, 1, 1, 1, 1, 1, 1, 1};
    static const float gates[8] = {0};
    moe_layer_request request = {
        .layer = layer, .experts = experts, .n_rows = ones, .gates = gates, .n = n};
    assert_int_equal(moe_expert_store_begin(f->engine->runner.experts, &request, NULL), MOE_OK);
}

static void wait_for_failures(store_fixture *f, uint32_t n)
{
    while (atomic_load(&f->n_failed) < n) {
        store_sleep_ms(1);
    }
    store_sleep_ms(30); /* the mover comes to its conclusions */
}

/* Two prefetches are wanted while they are being read, and fail after that. */
static void prefetches_fail_while_wanted(void **state)
{
    (void)state;
    const uint32_t experts[] = {1, 3};
    store_fixture f;
    store_fixture_open(&f, model_path, 0.5, NULL, NULL);
    atomic_store(&f.hold, true);
    atomic_store(&f.fail_all, true);
    moe_expert_store_prefetch(f.engine->runner.experts, 0, 0, experts, 2, 4);
    begin(&f, 0, experts, 2);
    atomic_store(&f.hold, false);
    moe_error error = {""};
    assert_int_equal(store_finish(&f, 0, experts, 2, &error), MOE_ERR_IO);
    assert_non_null(strstr(error.message, "layer 0, expert "));
    wait_for_failures(&f, 2);
    moe_expert_store_prefetch(f.engine->runner.experts, 0, 0, NULL, 0, 0); /* sees the second one */
    assert_int_equal(stats_of(&f).n_resident, 0);
    atomic_store(&f.fail_all, false);
    assert_int_equal(store_request(&f, 0, 1, experts, 2, NULL), MOE_OK);
    assert_int_equal(stats_of(&f).n_resident, 2);
    store_fixture_close(&f);
}

/* The same, but other prefetches are asked for between the failure and its being noticed: the slots
 * must not be given away under the layer. The fault passes, so the demand succeeds. */
static void prefetches_fail_and_others_follow(void **state)
{
    (void)state;
    const uint32_t experts[] = {1, 3};
    const uint32_t others[] = {0, 2, 4, 5};
    store_fixture f;
    store_fixture_open(&f, model_path, 0.5, NULL, NULL);
    atomic_store(&f.hold, true);
    atomic_store(&f.fail_all, true);
    moe_expert_store_prefetch(f.engine->runner.experts, 0, 0, experts, 2, 4);
    begin(&f, 0, experts, 2);
    atomic_store(&f.hold, false);
    wait_for_failures(&f, 2);
    atomic_store(&f.fail_all, false);
    moe_expert_store_prefetch(f.engine->runner.experts, 1, 0, others, 4, 8);
    assert_int_equal(store_finish(&f, 0, experts, 2, NULL), MOE_OK);
    assert_int_equal(store_request(&f, 1, 0, others, 4, NULL), MOE_OK);
    store_fixture_close(&f);
}

/* A prefetch that fails and is not wanted is nobody's error. */
static void unwanted_prefetches_fail_silently(void **state)
{
    (void)state;
    const uint32_t experts[] = {1, 3};
    const uint32_t others[] = {0, 2};
    store_fixture f;
    store_fixture_open(&f, model_path, 0.5, NULL, NULL);
    atomic_store(&f.fail_all, true);
    moe_expert_store_prefetch(f.engine->runner.experts, 0, 0, experts, 2, 4);
    wait_for_failures(&f, 2);
    atomic_store(&f.fail_all, false);
    assert_int_equal(store_request(&f, 0, 0, others, 2, NULL), MOE_OK);
    assert_int_equal(stats_of(&f).n_resident, 2);
    assert_int_equal(store_request(&f, 0, 1, experts, 2, NULL), MOE_OK);
    store_fixture_close(&f);
}

/* What has not begun to be read is taken back when its layer turns out to want something else. */
static void prefetches_are_cancelled(void **state)
{
    (void)state;
    const uint32_t foretold[] = {0, 1, 2, 3, 4, 5};
    const uint32_t wanted[] = {5, 6};
    store_fixture f;
    store_fixture_open(&f, model_path, 0.9, NULL, NULL);
    uint64_t expert_bytes = moe_expert_ref_bytes(&f.map->layers[1].experts[0]);
    atomic_store(&f.hold, true);
    moe_expert_store_prefetch(f.engine->runner.experts, 1, 0, foretold, 6, 6);
    while (atomic_load(&f.n_held) == 0) { /* the mover has taken one or two and is held */
        store_sleep_ms(1);
    }
    begin(&f, 1, wanted, 2);
    atomic_store(&f.hold, false);
    assert_int_equal(store_finish(&f, 1, wanted, 2, NULL), MOE_OK);
    moe_expert_store_stats stats = stats_of(&f);
    assert_int_equal(stats.prefetches, 6);
    assert_in_range(stats.prefetches_cancelled, 3, 4);
    assert_int_equal(stats.hits, 1);
    assert_int_equal(stats.misses, 1);
    assert_int_equal(stats.prefetches_used, 1);
    assert_int_equal(stats.bytes_demand, 2 * expert_bytes); /* expert 5 was raised to a demand */
    while (stats_of(&f).bytes_prefetch < (5 - stats.prefetches_cancelled) * expert_bytes) {
        store_sleep_ms(1);
    }
    for (uint32_t e = 0; e < 5; e++) {
        assert_int_equal(store_request(&f, 1, 1, &e, 1, NULL), MOE_OK);
    }
    store_fixture_close(&f);
}

typedef struct soak_setting {
    double share;
    bool per_layer, keep_nothing, hard, checked;
    const moe_io_ops *inner;
    bool tiers; /* a simulated device behind a host tier */
} soak_setting;

typedef struct soak {
    store_fixture *f;
    const soak_setting *setting;
} soak;

static void change(moe_expert_store_options *options, void *user)
{
    soak *s = user;
    options->per_layer = s->setting->per_layer;
    options->keep_nothing = s->setting->keep_nothing;
    options->sums = s->setting->checked ? &s->f->sums : NULL;
    s->f->fault.inner = s->setting->inner;
    s->f->short_per_mille = 60;
    s->f->transient_per_mille = 100;
    s->f->delay_per_mille = 60;
    s->f->max_delay_ns = 50000;
    s->f->hard_per_mille = s->setting->hard ? 300 : 0;
    s->f->flip_per_mille = s->setting->checked ? 20 : 0;
}

/* A random set of distinct experts, ascending. */
static uint32_t draw_experts(uint64_t *dice, uint32_t n_expert, uint32_t *experts)
{
    uint32_t n = 0;
    uint64_t per_mille = 30 + store_random(dice) % 500;
    for (uint32_t e = 0; e < n_expert; e++) {
        if (store_random(dice) % 1000 < per_mille) {
            experts[n++] = e;
        }
    }
    if (n == 0) {
        experts[n++] = (uint32_t)(store_random(dice) % n_expert);
    }
    return n;
}

/* With no hard errors every expert that was asked for ends as a move or as a cancellation. */
static void check_totals(store_fixture *f, const soak_setting *setting, uint64_t n_requested)
{
    uint64_t expert_bytes = moe_expert_ref_bytes(&f->map->layers[1].experts[0]);
    moe_expert_store_stats s;
    for (int i = 0; i < 60000; i++) { /* two minutes, on a busy machine */
        s = stats_of(f);
        if (setting->hard || setting->checked ||
            (s.bytes_demand + s.bytes_prefetch) / expert_bytes ==
                s.misses + s.prefetches - s.prefetches_cancelled) {
            break;
        }
        store_sleep_ms(2); /* prefetches are still under way */
    }
    uint64_t n_moves = (s.bytes_demand + s.bytes_prefetch) / expert_bytes;
    assert_int_equal((s.bytes_demand + s.bytes_prefetch) % expert_bytes, 0);
    if (!setting->hard && !setting->checked) {
        assert_int_equal(s.hits + s.misses, n_requested);
        assert_int_equal(n_moves, s.misses + s.prefetches - s.prefetches_cancelled);
    }
    assert_in_range(s.n_retries, 1, f->n_injected);
    assert_true(setting->hard || setting->checked || s.n_failed == 0);
    assert_true(!setting->hard || s.n_failed > 0);
    assert_int_equal(s.n_timeouts, 0);
    assert_true(s.prefetches_used + s.prefetches_wasted + s.prefetches_cancelled <= s.prefetches);
}

static void run_soak(const soak_setting *setting, uint64_t seed)
{
    store_fixture f;
    soak s = {&f, setting};
    store_fixture_open_on(&f, setting->tiers ? "sim:memory=64M,link=8GB/s,latency=2us" : "cpu",
                          model_path, setting->share, change, &s);
    uint64_t dice = seed * 2654435761u + 1;
    uint64_t n_requested = 0, n_layers = 0, n_failed = 0;
    uint32_t experts[64], foretold[64];
    assert_true(f.map->n_expert <= 64);
    for (uint64_t pass = 0; atomic_load(&f.n_injected) < n_faults; pass++) {
        for (uint32_t layer = 0; layer < f.map->n_layer; layer++, n_layers++) {
            uint32_t n = draw_experts(&dice, f.map->n_expert, experts);
            moe_expert_store_stats before = stats_of(&f);
            if (!setting->keep_nothing && store_random(&dice) % 2 == 0) {
                uint32_t n_foretold = draw_experts(&dice, f.map->n_expert, foretold);
                uint32_t ahead = (layer + (uint32_t)(store_random(&dice) % 2)) % f.map->n_layer;
                moe_expert_store_prefetch(f.engine->runner.experts, ahead, pass, foretold,
                                          n_foretold, 1 + (uint32_t)(store_random(&dice) % 6));
            }
            moe_error error;
            int status = store_request(&f, layer, pass, experts, n, &error);
            moe_expert_store_stats after = stats_of(&f);
            uint64_t n_counted = after.hits + after.misses - before.hits - before.misses;
            assert_true(status == MOE_OK ? n_counted == n : n_counted <= n);
            assert_true(status == MOE_OK || setting->hard || setting->checked);
            n_requested += n_counted;
            n_failed += status != MOE_OK;
        }
        moe_expert_store_end_pass(f.engine->runner.experts, pass);
    }
    f.engine->runner.n_passes = 0;
    check_totals(&f, setting, n_requested);
    print_message("%llu layers, %llu failed, %u faults\n", (unsigned long long)n_layers,
                  (unsigned long long)n_failed, f.n_injected);
    store_fixture_close(&f);
}

static const moe_io_ops *ring_or_threads(void)
{
    void *engine;
    moe_io_params params = {.depth = 8};
    if (moe_io_uring_ops.open(&engine, &params, NULL) != MOE_OK) {
        return &moe_io_threads_ops;
    }
    assert_true(moe_io_uring_ops.close(engine, 0));
    return &moe_io_uring_ops;
}

static void soaked(void **state)
{
    (void)state;
    const soak_setting settings[] = {
        {0.5, false, false, false, false, ring_or_threads(), false},
        {0.3, true, false, false, false, &moe_io_sync_ops, false},
        {0.4, false, false, true, false, &moe_io_threads_ops, false},
        {0.5, true, false, true, true, &moe_io_threads_ops, false},
        {0.5, false, true, true, false, &moe_io_sync_ops, false},
        {0.5, false, false, false, false, &moe_io_threads_ops, true},
        {0.4, true, false, true, true, ring_or_threads(), true},
        {0.5, false, true, true, false, &moe_io_threads_ops, true},
    };
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        run_soak(&settings[i], i + 1);
    }
}

int main(int argc, char **argv)
{
    if (argc != 2 && argc != 3) {
        fprintf(stderr, "usage: test_store_soak ORACLE-FOLDER [FAULTS]\n");
        return 2;
    }
    snprintf(model_path, sizeof model_path, "%s/olmoe/model.gguf", argv[1]);
    n_faults = argc == 3 ? (uint32_t)strtoul(argv[2], NULL, 10) / 8 : n_faults;
    alarm(argc == 3 ? 7200 : 1800); /* a hang is a failure */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefetches_fail_while_wanted),
        cmocka_unit_test(prefetches_fail_and_others_follow),
        cmocka_unit_test(unwanted_prefetches_fail_silently),
        cmocka_unit_test(prefetches_are_cancelled),
        cmocka_unit_test(soaked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
