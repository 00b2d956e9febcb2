/* SPDX-License-Identifier: MIT */
/* The simulator against a replay written without any of its parts, Belady against exhaustive search
 * and against every other policy, and the disk and prefetch models in cases small enough to reckon
 * by hand. With an argument: also a recorded trace. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <moe/trace.h>

#include "cache/trace_rows.h"
#include "tests/cache/random_stream.h"

static const char *recorded_path; /* or NULL */

static moe_trace *generated(const char *preset, uint32_t n_layer, uint32_t n_sequences,
                            uint32_t prompt_rows, uint32_t passes)
{
    moe_trace_generator generator;
    moe_trace *trace = NULL;
    assert_int_equal(moe_trace_generator_init(&generator, preset, NULL), MOE_OK);
    generator.n_layer = n_layer;
    generator.n_sequences = n_sequences;
    generator.prompt_rows = prompt_rows;
    generator.decode_passes = passes;
    generator.seed = 9;
    assert_int_equal(moe_trace_generate(&trace, &generator, NULL), MOE_OK);
    return trace;
}

static moe_simulation_result simulate(const moe_trace *trace, const moe_simulation *simulation)
{
    moe_simulation_result result = {.struct_size = sizeof result};
    moe_error err = {""};
    if (moe_simulate(trace, simulation, &result, &err) != MOE_OK) {
        fail_msg("%s", err.message);
    }
    return result;
}

static moe_simulation_result hits_of(const moe_trace *trace, const char *policy, uint32_t n_slots,
                                     bool per_layer)
{
    moe_simulation simulation;
    moe_simulation_init(&simulation);
    simulation.policy = policy;
    simulation.n_slots = n_slots;
    simulation.per_layer = per_layer;
    return simulate(trace, &simulation);
}

/* ---- LRU, replayed by a list searched from end to end ---- */

#define MAX_KEYS 4096

typedef struct replay {
    uint32_t keys[MAX_KEYS]; /* [0] is the oldest */
    uint32_t n, n_slots;
    uint64_t hits, misses;
} replay;

static bool replay_touch(replay *r, uint32_t key)
{
    for (uint32_t i = 0; i < r->n; i++) {
        if (r->keys[i] == key) {
            memmove(r->keys + i, r->keys + i + 1, (r->n - i - 1) * sizeof r->keys[0]);
            r->keys[r->n - 1] = key;
            return true;
        }
    }
    return false;
}

/* Hits of a wave first; a miss takes the oldest slot that the wave does not hold. */
static void replay_layer(replay *r, const uint32_t *keys, uint32_t n)
{
    bool done[MAX_KEYS] = {false};
    uint32_t n_done = 0;
    while (n_done < n) {
        uint32_t n_held = 0;
        for (uint32_t i = 0; i < n; i++) {
            if (!done[i] && replay_touch(r, keys[i])) {
                done[i] = true;
                n_done++;
                n_held++;
                r->hits++;
            }
        }
        for (uint32_t i = 0; i < n && n_held < r->n_slots; i++) {
            if (!done[i]) {
                if (r->n == r->n_slots) { /* what is held is at the end: all of it was touched */
                    memmove(r->keys, r->keys + 1, --r->n * sizeof r->keys[0]);
                }
                r->keys[r->n++] = keys[i];
                done[i] = true;
                n_done++;
                n_held++;
                r->misses++;
            }
        }
    }
}

static void replay_trace(replay *r, const moe_trace *trace, bool one_by_one)
{
    for (uint64_t pass = 0; pass < trace->n_passes; pass++) {
        for (uint32_t layer = 0; layer < trace->n_layer; layer++) {
            bool chosen[MAX_KEYS] = {false};
            uint32_t keys[MAX_KEYS];
            uint32_t n = 0;
            for (uint64_t row = 0; row < trace->n_rows; row++) {
                moe_trace_list list = moe_trace_list_of(trace, row, layer);
                for (uint32_t i = 0; trace->pass[row] == pass && i < list.n; i++) {
                    chosen[list.ids[i]] = true;
                }
            }
            for (uint32_t e = 0; e < trace->n_expert; e++) {
                keys[n] = layer * trace->n_expert + e;
                n += chosen[e];
            }
            for (uint32_t i = 0; one_by_one && i < n; i++) {
                replay_layer(r, keys + i, 1);
            }
            replay_layer(r, keys, one_by_one ? 0 : n);
        }
    }
}

static void test_lru_replayed(void **state)
{
    (void)state;
    moe_trace *trace = generated("olmoe", 4, 3, 20, 40);
    const uint32_t sizes[] = {1, 5, 17, 40, 100, 256};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        replay r = {.n_slots = sizes[s]};
        replay_trace(&r, trace, false);
        moe_simulation_result result = hits_of(trace, "lru", sizes[s], false);
        assert_int_equal(result.hits, r.hits);
        assert_int_equal(result.misses, r.misses);
        assert_int_equal(result.evictions, r.misses - r.n);
    }
    moe_trace_close(&trace);
}

/* ---- Belady ---- */

/* The fewest misses from here on, whatever is evicted: a layer of two experts at most, four keys a
 * layer, sets of keys as bits. Keys of the layer at work stay. */
typedef struct search {
    uint32_t need[32]; /* keys of each (pass, layer) */
    uint32_t n_steps;
    uint32_t n_slots;
    int16_t best[32][4096]; /* by step and resident set; -1: not known */
} search;

static int fewest_misses(search *s, uint32_t step, uint32_t resident)
{
    if (step == s->n_steps) {
        return 0;
    }
    if (s->best[step][resident] >= 0) {
        return s->best[step][resident];
    }
    uint32_t need = s->need[step];
    int misses = __builtin_popcount(need & ~resident);
    uint32_t all = resident | need;
    int best = 1000;
    for (uint32_t left = all;; left = (left - 1) & all) { /* every subset */
        uint32_t size = (uint32_t)__builtin_popcount(left);
        uint32_t full = (uint32_t)__builtin_popcount(all);
        if ((left & need) == need && size == (full < s->n_slots ? full : s->n_slots)) {
            int rest = fewest_misses(s, step + 1, left);
            best = rest < best ? rest : best;
        }
        if (left == 0) {
            break;
        }
    }
    s->best[step][resident] = (int16_t)(misses + best);
    return misses + best;
}

static void test_belady_exhaustively(void **state)
{
    (void)state;
    test_random random = {.state = 77};
    search *s = calloc(1, sizeof *s);
    for (int round = 0; round < 60; round++) {
        moe_trace *trace = moe_trace_new(3, 4, false);
        memset(s->best, 0xff, sizeof s->best);
        s->n_steps = 30;
        s->n_slots = 2 + test_random_below(&random, 6);
        for (uint32_t pass = 0; pass < 10; pass++) {
            assert_int_equal(moe_trace_add_row(trace, true, pass, 0), MOE_OK);
            for (uint32_t layer = 0; layer < 3; layer++) {
                uint16_t ids[2] = {(uint16_t)test_random_below(&random, 4), 0};
                ids[1] = (uint16_t)((ids[0] + 1 + test_random_below(&random, 3)) % 4);
                assert_int_equal(moe_trace_add_list(trace, ids, NULL, 2), MOE_OK);
                s->need[pass * 3 + layer] = 1u << (layer * 4 + ids[0]) | 1u << (layer * 4 + ids[1]);
            }
        }
        assert_int_equal(moe_trace_finish(trace, NULL), MOE_OK);
        moe_simulation_result result = hits_of(trace, "belady", s->n_slots, false);
        assert_int_equal(result.misses, fewest_misses(s, 0, 0));
        moe_trace_close(&trace);
    }
    free(s);
}

static void check_bound(const moe_trace *trace)
{
    const double shares[] = {0.02, 0.05, 0.1, 0.25, 0.5, 1};
    moe_simulation simulation;
    moe_simulation_init(&simulation);
    simulation.calibration = 0.2;
    for (size_t s = 0; s < sizeof shares / sizeof shares[0]; s++) {
        for (int per_layer = 0; per_layer < 2; per_layer++) {
            simulation.cache_share = shares[s];
            simulation.per_layer = per_layer == 1;
            simulation.policy = "belady";
            moe_simulation_result bound = simulate(trace, &simulation);
            for (uint32_t p = 0; moe_policy_name(p) != NULL; p++) {
                if ((moe_policy_needs(p) & MOE_POLICY_NEEDS_GATES) != 0 && !trace->has_gates) {
                    continue;
                }
                simulation.policy = moe_policy_name(p);
                moe_simulation_result result = simulate(trace, &simulation);
                assert_int_equal(result.hits + result.misses, bound.hits + bound.misses);
                assert_int_equal(result.policy_faults, 0);
                if (result.misses < bound.misses) {
                    fail_msg("%s has %llu misses, the bound is %llu", simulation.policy,
                             (unsigned long long)result.misses, (unsigned long long)bound.misses);
                }
                if (shares[s] == 1) { /* every policy misses each expert once */
                    assert_int_equal(result.misses, bound.misses);
                    assert_int_equal(result.evictions, 0);
                }
            }
        }
    }
}

static void test_belady_is_a_bound(void **state)
{
    (void)state;
    moe_trace *single = generated("olmoe", 16, 1, 0, 120);
    moe_trace *batch = generated("qwen3", 8, 4, 30, 40);
    check_bound(single);
    check_bound(batch);
    moe_trace_close(&single);
    moe_trace_close(&batch);
}

/* ---- The default's promise ---- */

static double hit_rate(const moe_trace *trace, const char *policy, double share, bool per_layer)
{
    moe_simulation simulation;
    moe_simulation_init(&simulation);
    simulation.policy = policy;
    simulation.cache_share = share;
    simulation.per_layer = per_layer;
    return simulate(trace, &simulation).hit_rate;
}

/* Never more than a point below LRU; with a tenth of the experts or less, at least 30 % of the way
 * from LRU to the bound. */
static void check_default(const moe_trace *trace, bool small_caches)
{
    const double shares[] = {0.05, 0.1, 0.15, 0.25, 0.5, 0.75};
    for (size_t s = 0; s < sizeof shares / sizeof shares[0]; s++) {
        for (int per_layer = 0; per_layer < 2; per_layer++) {
            double lru = hit_rate(trace, "lru", shares[s], per_layer == 1);
            double lfru = hit_rate(trace, "lfru", shares[s], per_layer == 1);
            double bound = hit_rate(trace, "belady", shares[s], per_layer == 1);
            assert_true(lfru >= lru - 0.01);
            if (small_caches && shares[s] <= 0.1 && lfru < lru + 0.3 * (bound - lru)) {
                fail_msg("share %g, per layer %d: lru %g, lfru %g, bound %g", shares[s], per_layer,
                         lru, lfru, bound);
            }
        }
    }
}

static void test_default_policy(void **state)
{
    (void)state;
    moe_trace *olmoe = generated("olmoe", 16, 1, 0, 300);
    moe_trace *qwen3 = generated("qwen3", 24, 1, 0, 200);
    check_default(olmoe, false);
    check_default(qwen3, false);
    moe_trace_close(&olmoe);
    moe_trace_close(&qwen3);
}

static void test_recorded(void **state)
{
    (void)state;
    if (recorded_path == NULL || access(recorded_path, R_OK) != 0) {
        skip();
    }
    moe_trace_open_options options;
    moe_trace_open_options_init(&options);
    options.path = recorded_path;
    moe_trace *trace = NULL;
    assert_int_equal(moe_trace_open(&trace, &options, NULL), MOE_OK);
    check_bound(trace);
    check_default(trace, true);
    moe_trace_close(&trace);
}

/* ---- Models by hand ---- */

/* n_passes of two layers: layer 0 wants expert 0 in every pass, layer 1 expert `pass`. */
static moe_trace *small_trace(uint32_t n_passes)
{
    moe_trace *trace = moe_trace_new(2, 8, false);
    for (uint16_t pass = 0; pass < n_passes; pass++) {
        const uint16_t always = 0;
        assert_int_equal(moe_trace_add_row(trace, true, pass, 0), MOE_OK);
        assert_int_equal(moe_trace_add_list(trace, &always, NULL, 1), MOE_OK);
        assert_int_equal(moe_trace_add_list(trace, &pass, NULL, 1), MOE_OK);
    }
    assert_int_equal(moe_trace_finish(trace, NULL), MOE_OK);
    return trace;
}

static void assert_near(double a, double b)
{
    if (fabs(a - b) > 1e-9) {
        fail_msg("%.12g instead of %.12g", a, b);
    }
}

static void test_disk_model(void **state)
{
    (void)state;
    moe_trace *trace = small_trace(4);
    moe_simulation simulation;
    moe_simulation_init(&simulation);
    simulation.n_slots = 4;
    simulation.policy = "lru";
    simulation.expert_bytes = 1000;
    simulation.bytes_per_s = 1e6; /* 1 ms an expert */
    simulation.latency_s = 0.5e-3;
    simulation.compute_s = 2e-3;
    moe_simulation_result r = simulate(trace, &simulation);
    assert_int_equal(r.misses, 5);
    assert_int_equal(r.hits, 3);
    assert_near(r.stall_s, 5 * 1.5e-3); /* a layer of one expert has nothing to compute meanwhile */
    assert_near(r.total_s, 5 * 1.5e-3 + 8 * 2e-3);
    assert_near(r.bytes_per_token, 5 * 1000.0 / 4);

    /* Told in time and all right: layer 1's expert is read while layer 0 computes. */
    simulation.prefetch_recall = 1;
    r = simulate(trace, &simulation);
    assert_int_equal(r.prefetches, 4);
    assert_int_equal(r.prefetches_used, 4);
    assert_int_equal(r.misses, 1);
    assert_near(r.stall_s, 1.5e-3);
    assert_near(r.total_s, 1.5e-3 + 8 * 2e-3);

    /* All wrong: one expert for nothing per pass, and the next layer's read waits behind it. */
    simulation.prefetch_recall = 0;
    r = simulate(trace, &simulation);
    assert_int_equal(r.prefetches_used, 0);
    assert_int_equal(r.misses, 5);
    assert_near(r.bytes_per_token, (double)(r.misses + r.prefetches) * 1000.0 / 4);

    /* What does not count is not told. */
    simulation.prefetch_recall = -1;
    simulation.warm_up = 3;
    r = simulate(trace, &simulation);
    assert_int_equal(r.n_passes, 1);
    assert_int_equal(r.n_tokens, 1);
    assert_int_equal(r.hits, 1);
    assert_int_equal(r.misses, 1);
    assert_near(r.total_s, 1.5e-3 + 2 * 2e-3);
    moe_trace_close(&trace);
}

/* Two reads at a time: three misses are two rounds of latency. Half of the layer is resident and
 * computes meanwhile. */
static void test_overlap(void **state)
{
    (void)state;
    moe_trace *trace = moe_trace_new(1, 8, false);
    const uint16_t rows[2][6] = {{0, 1, 2}, {0, 1, 2, 3, 4, 5}};
    for (int row = 0; row < 2; row++) {
        assert_int_equal(moe_trace_add_row(trace, true, 0, 0), MOE_OK);
        assert_int_equal(moe_trace_add_list(trace, rows[row], NULL, row == 0 ? 3 : 6), MOE_OK);
    }
    assert_int_equal(moe_trace_finish(trace, NULL), MOE_OK);
    moe_simulation simulation;
    moe_simulation_init(&simulation);
    simulation.n_slots = 8;
    simulation.expert_bytes = 1000;
    simulation.bytes_per_s = 1e6;
    simulation.latency_s = 0.5e-3;
    simulation.depth = 2;
    simulation.compute_s = 6e-3;
    simulation.warm_up = 1;
    moe_simulation_result r = simulate(trace, &simulation);
    assert_int_equal(r.misses, 3);
    assert_near(r.stall_s, (3e-3 + 2 * 0.5e-3) - 3e-3);
    moe_trace_close(&trace);
}

static void test_recall(void **state)
{
    (void)state;
    moe_trace *trace = generated("olmoe", 16, 1, 0, 200);
    moe_simulation simulation;
    moe_simulation_init(&simulation);
    simulation.cache_share = 0.25;
    double last = -1;
    for (int i = 0; i <= 4; i++) {
        simulation.prefetch_recall = i / 4.0;
        moe_simulation_result r = simulate(trace, &simulation);
        assert_true(r.hit_rate > last);
        assert_true(r.prefetches >= r.prefetches_used + r.prefetches_wasted);
        last = r.hit_rate;
    }
    /* All but the first layer's are foreseen. */
    assert_true(last > 0.95);
    moe_trace_close(&trace);
}

/* Two experts, two others, the first two again; a device of two slots. Without saves in engine and
 * inclusive tiers, because the host still has what leaves the device. */
static void test_two_tiers(void **state)
{
    (void)state;
    moe_trace *trace = moe_trace_new(1, 8, false);
    for (uint16_t pass = 0; pass < 3; pass++) {
        const uint16_t experts[2] = {(uint16_t)(2 * (pass % 2)), (uint16_t)(2 * (pass % 2) + 1)};
        assert_int_equal(moe_trace_add_row(trace, true, pass, 0), MOE_OK);
        assert_int_equal(moe_trace_add_list(trace, experts, NULL, 2), MOE_OK);
    }
    assert_int_equal(moe_trace_finish(trace, NULL), MOE_OK);
    moe_simulation simulation;
    moe_simulation_init(&simulation);
    simulation.policy = "lru";
    simulation.n_slots = 2;
    simulation.host_slots = 4;
    simulation.expert_bytes = 1000;
    simulation.bytes_per_s = 1e6; /* 1 ms an expert */
    simulation.latency_s = 0.5e-3;
    simulation.depth = 1;
    simulation.link_bytes_per_s = 2e6; /* 0.5 ms */
    simulation.link_latency_s = 0.1e-3;
    simulation.compute_s = 2e-3;
    for (int use = MOE_TIERS_ENGINE; use <= MOE_TIERS_EXCLUSIVE; use++) {
        simulation.tiers = (moe_tier_use)use;
        const moe_simulation_result r = simulate(trace, &simulation);
        assert_int_equal(r.misses, 6);
        assert_int_equal(r.host_hits, 2);
        assert_int_equal(r.host_misses, 4);
        assert_int_equal(r.demoted, use == MOE_TIERS_EXCLUSIVE ? 4 : 0);
        assert_int_equal(r.demoted_hits, use == MOE_TIERS_EXCLUSIVE ? 2 : 0);
        assert_near(r.disk_bytes_per_token, 4 * 1000.0 / 3);
        /* The second of two reads ends after 3 ms, and is moved then; from memory, two moves. */
        assert_near(r.stall_s, 2 * (3e-3 + 0.6e-3) + 2 * 0.6e-3);
        assert_near(r.total_s, r.stall_s + 3 * 2e-3);
    }
    /* A host of two slots: what it holds beside the device is all, or nothing. */
    simulation.host_slots = 2;
    simulation.tiers = MOE_TIERS_INCLUSIVE;
    assert_int_equal(simulate(trace, &simulation).host_hits, 0);
    simulation.tiers = MOE_TIERS_EXCLUSIVE;
    assert_int_equal(simulate(trace, &simulation).host_hits, 2);
    moe_trace_close(&trace);
}

/* With two tiers the experts in memory are as many as the slots of one (exclusive), or as those of
 * the host (inclusive), so no use of them beats Belady's bound of a cache with all slots. */
static void test_tiers_in_bounds(void **state)
{
    (void)state;
    moe_trace *trace = generated("olmoe", 3, 2, 5, 60);
    moe_simulation simulation;
    moe_simulation_init(&simulation);
    for (uint32_t p = 0; moe_policy_name(p) != NULL; p++) {
        for (int use = MOE_TIERS_ENGINE; use <= MOE_TIERS_EXCLUSIVE && moe_policy_needs(p) == 0;
             use++) {
            simulation.policy = moe_policy_name(p);
            simulation.n_slots = 40;
            simulation.host_slots = 70;
            simulation.tiers = (moe_tier_use)use;
            const moe_simulation_result r = simulate(trace, &simulation);
            assert_int_equal(r.host_hits + r.host_misses, r.misses);
            assert_true(r.demoted_hits <= r.host_hits && r.demoted <= r.evictions);
            simulation.policy = "belady";
            simulation.n_slots = use == MOE_TIERS_INCLUSIVE ? 70 : 110;
            simulation.host_slots = 0;
            simulation.tiers = MOE_TIERS_ENGINE;
            assert_true(r.host_misses >= simulate(trace, &simulation).misses);
        }
    }
    simulation.n_slots = 40;
    simulation.host_slots = 70;
    simulation.policy = "belady";
    moe_simulation_result result = {.struct_size = sizeof result};
    assert_int_not_equal(moe_simulate(trace, &simulation, &result, NULL), MOE_OK);
    moe_trace_close(&trace);
}

static void test_refused(void **state)
{
    (void)state;
    moe_trace *trace = small_trace(4);
    moe_simulation good;
    moe_simulation_init(&good);
    good.cache_share = 0.5;
    moe_simulation bad[15];
    for (size_t i = 0; i < 15; i++) {
        bad[i] = good;
    }
    bad[0].struct_size = 1;
    bad[1].policy = NULL;
    bad[2].cache_share = 0;
    bad[3].cache_share = 1.5;
    bad[4].calibration = 1;
    bad[5].calibration = 0.1; /* of four passes: none */
    bad[6].warm_up = 4;
    bad[7].bytes_per_s = 0;
    bad[8].depth = 0;
    bad[9].policy = "gate-score";
    bad[10].prefetch_recall = 1.5;
    bad[11].tiers = (moe_tier_use)3;
    bad[12].link_bytes_per_s = 0;
    bad[13].link_latency_s = -1;
    bad[14].host_slots = 3;
    bad[14].is_sequential = true;
    for (size_t i = 0; i < 15; i++) {
        moe_simulation_result result = {.struct_size = sizeof result};
        moe_error err = {""};
        assert_int_equal(moe_simulate(trace, &bad[i], &result, &err), MOE_ERR_ARGUMENT);
        assert_string_not_equal(err.message, "");
    }
    moe_trace_close(&trace);
}

/* Accesses one by one: LRU as a list replays it, and Belady's bound is the least of all. Nothing is
 * pinned, so a cache of one slot works too, and nothing waits for a second wave. */
static void test_sequential(void **state)
{
    (void)state;
    moe_trace *trace = generated("olmoe", 3, 2, 5, 60);
    for (uint32_t n_slots = 1; n_slots < 120; n_slots += 17) {
        moe_simulation simulation;
        moe_simulation_init(&simulation);
        simulation.n_slots = n_slots;
        simulation.is_sequential = true;
        simulation.policy = "lru";
        const moe_simulation_result lru = simulate(trace, &simulation);
        replay r = {.n_slots = n_slots};
        replay_trace(&r, trace, true);
        assert_int_equal(lru.hits, r.hits);
        assert_int_equal(lru.misses, r.misses);
        assert_int_equal(lru.extra_waves, 0);
        simulation.policy = "belady";
        const uint64_t least = simulate(trace, &simulation).misses;
        for (uint32_t p = 0; moe_policy_name(p) != NULL; p++) {
            simulation.policy = moe_policy_name(p);
            if (moe_policy_needs(p) == 0) {
                assert_true(simulate(trace, &simulation).misses >= least);
            }
        }
    }
    moe_simulation refused;
    moe_error err = {""};
    moe_simulation_result result = {.struct_size = sizeof result};
    moe_simulation_init(&refused);
    refused.is_sequential = true;
    refused.prefetch_recall = 0.5;
    assert_int_equal(moe_simulate(trace, &refused, &result, &err), MOE_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "one by one"));
    moe_trace_close(&trace);
}

int main(int argc, char **argv)
{
    recorded_path = argc > 1 ? argv[1] : NULL;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lru_replayed),      cmocka_unit_test(test_belady_exhaustively),
        cmocka_unit_test(test_belady_is_a_bound), cmocka_unit_test(test_default_policy),
        cmocka_unit_test(test_recorded),          cmocka_unit_test(test_disk_model),
        cmocka_unit_test(test_overlap),           cmocka_unit_test(test_recall),
        cmocka_unit_test(test_refused),           cmocka_unit_test(test_sequential),
        cmocka_unit_test(test_two_tiers),         cmocka_unit_test(test_tiers_in_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
