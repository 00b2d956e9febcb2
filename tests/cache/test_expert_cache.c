/* SPDX-License-Identifier: MIT */
/* The mechanism under every policy: random operations against a model made of plain sets, and the
 * cases of size classes, a split by layers, pins and faulty policies. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "cache/expert_cache.h"
#include "cache/layer_access.h"
#include "tests/cache/random_stream.h"

#define N_LAYER  6
#define N_EXPERT 16
#define N_KEYS   (N_LAYER * N_EXPERT)

static moe_expert_cache *make_cache(const moe_policy *policy, bool per_layer,
                                    const uint32_t *classes, uint32_t n_classes,
                                    const uint32_t *slots)
{
    static float hotness[N_KEYS];
    for (int i = 0; i < N_KEYS; i++) {
        hotness[i] = (float)(i % N_EXPERT) / 120.0f;
    }
    moe_expert_cache_options options = {.n_layer = N_LAYER,
                                        .n_expert = N_EXPERT,
                                        .n_expert_used = 4,
                                        .class_of_layer = classes,
                                        .n_classes = n_classes,
                                        .slots_of_class = slots,
                                        .per_layer = per_layer,
                                        .policy = policy,
                                        .hotness = hotness,
                                        .has_gates = true,
                                        .has_future = true,
                                        .seed = 5};
    moe_expert_cache *cache = NULL;
    moe_error err = {""};
    assert_int_equal(moe_expert_cache_create(&cache, &options, &err), MOE_OK);
    return cache;
}

/* What the test believes. */
typedef struct believed {
    bool resident[N_KEYS];
    uint32_t pins[N_KEYS];
    uint64_t hits, misses;
} believed;

static void believe_eviction(believed *b, uint32_t evicted)
{
    if (evicted != MOE_KEY_NONE) {
        assert_true(b->resident[evicted]);
        assert_int_equal(b->pins[evicted], 0);
        b->resident[evicted] = false;
    }
}

static void random_operation(moe_expert_cache *cache, believed *b, test_random *random,
                             uint64_t pass)
{
    uint32_t key = test_random_below(random, N_KEYS);
    moe_policy_access access = {.pass = pass,
                                .layer = key / N_EXPERT,
                                .n_rows = 1 + test_random_below(random, 3),
                                .gate = 0.25f,
                                .next_use = (pass + 1 + test_random_below(random, 9)) * N_LAYER};
    uint32_t evicted;
    bool hit;
    switch (test_random_below(random, 8)) {
    case 0:
        if (b->resident[key]) {
            moe_expert_cache_pin(cache, key);
            b->pins[key]++;
        }
        break;
    case 1:
    case 2:
        if (b->pins[key] > 0) {
            moe_expert_cache_unpin(cache, key);
            b->pins[key]--;
        }
        break;
    case 3:
        moe_expert_cache_drop(cache, key);
        b->resident[key] = false;
        b->pins[key] = 0;
        break;
    case 4:
        access.n_rows = 0;
        if (moe_expert_cache_prefetch(cache, key, &access, &evicted) != MOE_SLOT_NONE) {
            assert_false(b->resident[key]);
            believe_eviction(b, evicted);
            b->resident[key] = true;
        }
        break;
    default:
        if (moe_expert_cache_access(cache, key, &access, &hit, &evicted) != MOE_SLOT_NONE) {
            assert_int_equal(hit, b->resident[key]);
            believe_eviction(b, evicted);
            b->hits += hit;
            b->misses += !hit;
            b->resident[key] = true;
        } else {
            assert_false(b->resident[key]);
        }
    }
}

static void check_believed(const moe_expert_cache *cache, const believed *b)
{
    uint32_t n = 0;
    for (uint32_t key = 0; key < N_KEYS; key++) {
        uint32_t slot = moe_expert_cache_find(cache, key);
        assert_int_equal(slot != MOE_SLOT_NONE, b->resident[key]);
        if (slot != MOE_SLOT_NONE) {
            assert_int_equal(moe_expert_cache_key_of(cache, slot), key);
        }
        n += b->resident[key];
    }
    moe_expert_cache_stats stats;
    moe_expert_cache_get_stats(cache, &stats);
    assert_int_equal(stats.hits, b->hits);
    assert_int_equal(stats.misses, b->misses);
    assert_int_equal(stats.policy_faults, 0);
    assert_int_equal(moe_expert_cache_n_resident(cache), n);
    assert_true(moe_expert_cache_is_sane(cache));
}

static void test_random_operations(void **state)
{
    (void)state;
    const uint32_t one_pool[] = {20};
    const uint32_t two_pools[] = {13, 9};
    const uint32_t classes[N_LAYER] = {0, 1, 1, UINT32_MAX, 0, 0};
    for (uint32_t p = 0; moe_policy_at(p) != NULL; p++) {
        for (int shape = 0; shape < 4; shape++) {
            moe_expert_cache *cache =
                shape < 2 ? make_cache(moe_policy_at(p), shape == 1, NULL, 1, one_pool)
                          : make_cache(moe_policy_at(p), shape == 3, classes, 2, two_pools);
            test_random random = {.state = 7 * p + (uint32_t)shape};
            believed b = {.hits = 0};
            for (uint64_t i = 0; i < 6000; i++) {
                random_operation(cache, &b, &random, i / 40);
                if (i % 40 == 39) {
                    moe_expert_cache_end_pass(cache, i / 40);
                }
                if (i % 97 == 0) {
                    check_believed(cache, &b);
                }
            }
            check_believed(cache, &b);
            moe_expert_cache_destroy(&cache);
            assert_null(cache);
        }
    }
}

/* Everything of a domain pinned: no slot, and nothing counted or changed. */
static void test_all_pinned(void **state)
{
    (void)state;
    const uint32_t slots[] = {4};
    for (uint32_t p = 0; moe_policy_at(p) != NULL; p++) {
        moe_expert_cache *cache = make_cache(moe_policy_at(p), false, NULL, 1, slots);
        moe_policy_access access = {.n_rows = 1, .gate = 0.5f, .next_use = 9};
        bool hit;
        uint32_t evicted;
        for (uint32_t key = 0; key < 4; key++) {
            assert_int_equal(moe_expert_cache_access(cache, key, &access, &hit, &evicted), key);
            moe_expert_cache_pin(cache, key);
        }
        moe_expert_cache_pin(cache, 2);
        assert_int_equal(moe_expert_cache_access(cache, 9, &access, &hit, &evicted), MOE_SLOT_NONE);
        assert_int_equal(moe_expert_cache_prefetch(cache, 9, &access, &evicted), MOE_SLOT_NONE);
        assert_int_equal(evicted, MOE_KEY_NONE);
        moe_expert_cache_unpin(cache, 2);
        assert_int_equal(moe_expert_cache_access(cache, 9, &access, &hit, &evicted), MOE_SLOT_NONE);
        moe_expert_cache_unpin(cache, 2);
        assert_int_equal(moe_expert_cache_access(cache, 9, &access, &hit, &evicted), 2);
        assert_int_equal(evicted, 2);
        moe_expert_cache_stats stats;
        moe_expert_cache_get_stats(cache, &stats);
        assert_int_equal(stats.misses, 5);
        assert_int_equal(stats.prefetch_inserts, 0);
        assert_true(moe_expert_cache_is_sane(cache));
        moe_expert_cache_destroy(&cache);
    }
}

/* A layer larger than its domain passes in waves; within a wave nothing of it is evicted. */
static void test_waves(void **state)
{
    (void)state;
    const uint32_t slots[] = {5};
    uint32_t keys[N_EXPERT];
    moe_policy_access accesses[N_EXPERT];
    for (uint32_t i = 0; i < N_EXPERT; i++) {
        keys[i] = i;
        accesses[i] = (moe_policy_access){.pass = 1, .n_rows = 1, .gate = 1, .next_use = 12};
    }
    for (uint32_t p = 0; moe_policy_at(p) != NULL; p++) {
        moe_expert_cache *cache = make_cache(moe_policy_at(p), false, NULL, 1, slots);
        bool hit;
        uint32_t evicted;
        moe_expert_cache_access(cache, 11, &accesses[11], &hit, &evicted);
        moe_expert_cache_access(cache, 3, &accesses[3], &hit, &evicted);
        bool handled[N_EXPERT] = {false};
        moe_layer_access wave[N_EXPERT];
        uint32_t n_handled = 0;
        for (int w = 0; w < 4; w++) {
            uint32_t n = moe_layer_access_wave(cache, keys, accesses, N_EXPERT, handled, wave);
            assert_int_equal(n, w < 3 ? 5 : 1);
            for (uint32_t i = 0; i < n; i++) {
                uint32_t key = keys[wave[i].position];
                assert_int_equal(wave[i].hit, w == 0 && i < 2);
                assert_int_equal(moe_expert_cache_find(cache, key), wave[i].slot);
                moe_expert_cache_unpin(cache, key);
            }
            if (w == 0) {
                assert_int_equal(wave[0].position, 3);
                assert_int_equal(wave[1].position, 11);
                assert_int_equal(wave[2].position, 0);
            }
            n_handled += n;
        }
        assert_int_equal(n_handled, N_EXPERT);
        assert_true(moe_expert_cache_is_sane(cache));
        moe_expert_cache_destroy(&cache);
    }
}

static void test_prefetch_counts(void **state)
{
    (void)state;
    const uint32_t slots[] = {2};
    const moe_policy *lru = NULL;
    void *plugin = NULL;
    assert_int_equal(moe_policy_load(&lru, &plugin, "lru", NULL), MOE_OK);
    moe_expert_cache *cache = make_cache(lru, false, NULL, 1, slots);
    moe_policy_access ahead = {.pass = 0};
    moe_policy_access use = {.pass = 1, .n_rows = 1};
    uint32_t evicted;
    bool hit;
    moe_expert_cache_prefetch(cache, 1, &ahead, &evicted);
    assert_int_equal(moe_expert_cache_prefetch(cache, 1, &ahead, &evicted), MOE_SLOT_NONE);
    moe_expert_cache_prefetch(cache, 2, &ahead, &evicted);
    moe_expert_cache_drop(cache, 2);
    moe_expert_cache_prefetch(cache, 3, &ahead, &evicted);
    moe_expert_cache_access(cache, 1, &use, &hit, &evicted);
    assert_true(hit);
    moe_expert_cache_access(cache, 1, &use, &hit, &evicted);
    moe_expert_cache_access(cache, 4, &use, &hit, &evicted);
    assert_int_equal(evicted, 3);
    moe_expert_cache_stats s;
    moe_expert_cache_get_stats(cache, &s);
    assert_int_equal(s.prefetch_inserts, 3);
    assert_int_equal(s.prefetch_used, 1);
    assert_int_equal(s.prefetch_wasted, 1);
    assert_int_equal(s.prefetch_dropped, 1);
    assert_int_equal(s.hits, 2);
    assert_int_equal(s.misses, 1);
    moe_expert_cache_destroy(&cache);
}

/* Slots are numbered through the classes and stay within the layer's share. */
static void test_split_by_layer(void **state)
{
    (void)state;
    const uint32_t slots[] = {7, 4};
    const uint32_t classes[N_LAYER] = {0, 1, 1, UINT32_MAX, 0, 0};
    const uint32_t first[N_LAYER] = {0, 7, 9, 0, 3, 5};
    const uint32_t share[N_LAYER] = {3, 2, 2, 0, 2, 2};
    moe_expert_cache *cache = make_cache(moe_policy_at(0), true, classes, 2, slots);
    assert_int_equal(moe_expert_cache_n_slots(cache), 11);
    for (uint32_t layer = 0; layer < N_LAYER; layer++) {
        for (uint32_t e = 0; e < N_EXPERT; e++) {
            moe_policy_access access = {.layer = layer, .n_rows = 1};
            bool hit;
            uint32_t evicted;
            uint32_t slot =
                moe_expert_cache_access(cache, layer * N_EXPERT + e, &access, &hit, &evicted);
            if (share[layer] == 0) {
                assert_int_equal(slot, MOE_SLOT_NONE);
            } else {
                assert_in_range(slot, first[layer], first[layer] + share[layer] - 1);
            }
        }
    }
    assert_true(moe_expert_cache_is_sane(cache));
    moe_expert_cache_destroy(&cache);
}

/* ---- Two tiers ---- */

/* Random accesses, prefetches, pins and drops in both of two tiers: the count of spare experts is
 * right (the caches check it after each pass), and whenever there is one, a spare one is evicted.
 */
static void test_spare_first(void **state)
{
    (void)state;
    const uint32_t above_slots[] = {N_KEYS / 3};
    const uint32_t below_slots[] = {N_KEYS / 2};
    for (uint32_t p = 0; moe_policy_at(p) != NULL; p++) {
        moe_expert_cache *tiers[] = {
            make_cache(moe_policy_at(p), false, NULL, 1, above_slots),
            make_cache(moe_policy_at(p), p % 2 == 1, NULL, 1, below_slots)};
        assert_true(moe_expert_cache_stack(tiers[1], tiers[0]));
        uint64_t random = 88172645463325252u + p;
        uint32_t n_spare_evicted = 0;
        for (uint32_t i = 0; i < 4000; i++) {
            random ^= random << 13, random ^= random >> 7, random ^= random << 17;
            moe_expert_cache *cache = tiers[random >> 20 & 1];
            uint32_t key = (uint32_t)(random >> 24) % N_KEYS;
            moe_policy_access access = {
                .pass = i / 50, .layer = key / N_EXPERT, .n_rows = 1, .next_use = i + 1};
            bool hit;
            uint32_t evicted = MOE_KEY_NONE;
            uint32_t n_spare = moe_expert_cache_n_spare(cache, key);
            uint32_t act = (uint32_t)(random >> 40) % 8;
            if (act < 5) {
                (void)moe_expert_cache_access(cache, key, &access, &hit, &evicted);
            } else if (moe_expert_cache_find(cache, key) == MOE_SLOT_NONE) {
                (void)moe_expert_cache_prefetch(cache, key, &access, &evicted);
            } else if (act == 5) {
                moe_expert_cache_pin(cache, key);
                assert_true(moe_expert_cache_is_sane(tiers[1]));
                moe_expert_cache_unpin(cache, key);
            } else if (act == 6) {
                moe_expert_cache_pin(cache, key);
                moe_expert_cache_drop(cache, key);
            }
            if (cache == tiers[1] && evicted != MOE_KEY_NONE) {
                bool spare = moe_expert_cache_find(tiers[0], evicted) != MOE_SLOT_NONE;
                assert_true(spare == (n_spare > 0));
                n_spare_evicted += spare;
            }
            assert_true(moe_expert_cache_is_sane(tiers[0]) && moe_expert_cache_is_sane(tiers[1]));
        }
        assert_true(n_spare_evicted > 0);
        moe_expert_cache_destroy(&tiers[0]);
        moe_expert_cache_destroy(&tiers[1]);
    }
}

/* ---- A policy that breaks its contract ---- */

static void *faulty_create(const moe_policy_config *config)
{
    return malloc(config->n_keys);
}
static void faulty_note(void *state, uint32_t key, const moe_policy_access *access)
{
    (void)state;
    (void)key;
    (void)access;
}
static void faulty_evict(void *state, uint32_t key)
{
    (void)state;
    (void)key;
}
static uint32_t faulty_victim(void *state, uint32_t for_key, moe_policy_evictable may,
                              void *context)
{
    (void)state;
    (void)may;
    (void)context;
    return for_key == 3 ? 0 : for_key == 4 ? 0xfffffff0u : for_key == 5 ? MOE_KEY_NONE : for_key;
}
static void faulty_end_pass(void *state, uint64_t pass)
{
    (void)state;
    (void)pass;
}

static void test_faulty_policy(void **state)
{
    (void)state;
    const moe_policy faulty = {.abi = MOE_POLICY_ABI,
                               .name = "faulty",
                               .create = faulty_create,
                               .destroy = free,
                               .hit = faulty_note,
                               .insert = faulty_note,
                               .evict = faulty_evict,
                               .victim = faulty_victim,
                               .end_pass = faulty_end_pass};
    const uint32_t slots[] = {3};
    moe_expert_cache *cache = make_cache(&faulty, false, NULL, 1, slots);
    moe_policy_access access = {.n_rows = 1};
    bool hit;
    uint32_t evicted;
    for (uint32_t key = 0; key < 3; key++) {
        moe_expert_cache_access(cache, key, &access, &hit, &evicted);
    }
    moe_expert_cache_pin(cache, 0);
    for (uint32_t key = 3; key < 8; key++) { /* pinned, absurd, none, the wanted key itself */
        assert_int_not_equal(moe_expert_cache_access(cache, key, &access, &hit, &evicted),
                             MOE_SLOT_NONE);
        assert_int_not_equal(evicted, 0);
        assert_true(moe_expert_cache_is_sane(cache));
    }
    moe_expert_cache_stats stats;
    moe_expert_cache_get_stats(cache, &stats);
    assert_int_equal(stats.policy_faults, 5);
    assert_int_equal(stats.evictions, 5);
    moe_expert_cache_destroy(&cache);
}

static void test_refused_options(void **state)
{
    (void)state;
    const uint32_t slots[] = {5};
    const uint32_t too_many[] = {UINT32_MAX, UINT32_MAX};
    const uint32_t wrong_class[2] = {0, 3};
    const moe_policy *lru = NULL;
    void *plugin = NULL;
    assert_int_equal(moe_policy_load(&lru, &plugin, "lru", NULL), MOE_OK);
    moe_policy greedy = *lru;
    greedy.needs = MOE_POLICY_NEEDS_HOTNESS;
    moe_policy gated = *lru;
    gated.needs = MOE_POLICY_NEEDS_GATES;
    moe_policy prophet = *lru;
    prophet.needs = MOE_POLICY_NEEDS_FUTURE;
    const moe_expert_cache_options good = {
        .n_layer = 2, .n_expert = 4, .n_classes = 1, .slots_of_class = slots, .policy = lru};
    moe_expert_cache_options bad[] = {good, good, good, good, good, good, good, good, good};
    bad[0].n_layer = 0;
    bad[1].n_layer = bad[1].n_expert = 1u << 16;
    bad[2].n_classes = 0;
    bad[3].n_classes = 2;
    bad[3].slots_of_class = too_many;
    bad[4].class_of_layer = wrong_class;
    bad[5].policy = &greedy;
    bad[6].policy = &gated;
    bad[7].policy = &prophet;
    bad[8].per_layer = true;
    bad[8].n_layer = 6;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        moe_expert_cache *cache = NULL;
        moe_error err = {""};
        int status = moe_expert_cache_create(&cache, &bad[i], &err);
        assert_int_equal(status, i == 8 ? MOE_ERR_BUDGET : MOE_ERR_ARGUMENT);
        assert_null(cache);
        assert_string_not_equal(err.message, "");
    }
}

static void test_policy_names(void **state)
{
    (void)state;
    const moe_policy *policy = NULL;
    void *plugin = NULL;
    moe_error err = {""};
    for (uint32_t p = 0; moe_policy_at(p) != NULL; p++) {
        assert_int_equal(moe_policy_load(&policy, &plugin, moe_policy_at(p)->name, &err), MOE_OK);
        assert_ptr_equal(policy, moe_policy_at(p));
        assert_null(plugin);
    }
    assert_string_equal(moe_policy_at(0)->name, MOE_POLICY_DEFAULT);
    assert_int_equal(moe_policy_load(&policy, &plugin, "lruu", &err), MOE_ERR_ARGUMENT);
    assert_null(policy);
    assert_non_null(strstr(err.message, "lfru, lru"));
    moe_policy_release(&plugin);
}

/* Slots that are named ahead: empty ones, then distinct unpinned ones in the order in which LRU
 * evicts; to take one evicts what it had, as an access would have. */
static void test_named_and_taken(void **state)
{
    (void)state;
    const uint32_t n_slots = 8;
    const moe_policy *policy;
    for (uint32_t i = 0; (policy = moe_policy_at(i)) != NULL; i++) {
        moe_expert_cache *cache = make_cache(policy, false, NULL, 1, &n_slots);
        uint32_t slots[N_KEYS], evicted, pinned = 2;
        bool hit, is_lru = strcmp(policy->name, "lru") == 0;
        for (uint32_t key = 0; key < n_slots - 2; key++) {
            moe_policy_access access = {.n_rows = 1, .next_use = 1 + key};
            (void)moe_expert_cache_access(cache, key, &access, &hit, &evicted);
        }
        moe_expert_cache_pin(cache, pinned);
        assert_int_equal(moe_expert_cache_nominate(cache, 0, 5, slots), 5);
        for (uint32_t k = 0; k < 5; k++) {
            uint32_t key = moe_expert_cache_key_of(cache, slots[k]);
            assert_true((key == MOE_KEY_NONE) == (k < 2) && key != pinned);
            assert_true(!is_lru || k < 2 || key == (k < 4 ? k - 2 : 3));
            for (uint32_t other = 0; other < k; other++) {
                assert_int_not_equal(slots[k], slots[other]);
            }
        }
        assert_int_equal(moe_expert_cache_nominate(cache, 0, N_KEYS, slots), n_slots - 1);
        for (uint32_t n = 0; n < n_slots - 1; n++) { /* the last first: the order is the caller's */
            moe_expert_cache_stats before, after;
            uint32_t slot = slots[n_slots - 2 - n], key = N_KEYS - 1 - n;
            uint32_t victim = moe_expert_cache_key_of(cache, slot);
            moe_policy_access access = {.pass = 1, .layer = N_LAYER - 1, .n_rows = 1};
            moe_expert_cache_get_stats(cache, &before);
            moe_expert_cache_take(cache, slot, key, &access);
            moe_expert_cache_get_stats(cache, &after);
            assert_int_equal(moe_expert_cache_find(cache, key), slot);
            assert_int_equal(moe_expert_cache_find(cache, victim), MOE_SLOT_NONE);
            assert_int_equal(after.evictions - before.evictions, victim != MOE_KEY_NONE);
            assert_int_equal(after.misses - before.misses, 1);
            assert_true(moe_expert_cache_is_sane(cache));
        }
        assert_int_equal(moe_expert_cache_find(cache, pinned), 2);
        moe_expert_cache_destroy(&cache);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_operations),
        cmocka_unit_test(test_all_pinned),
        cmocka_unit_test(test_waves),
        cmocka_unit_test(test_prefetch_counts),
        cmocka_unit_test(test_split_by_layer),
        cmocka_unit_test(test_spare_first),
        cmocka_unit_test(test_faulty_policy),
        cmocka_unit_test(test_refused_options),
        cmocka_unit_test(test_policy_names),
        cmocka_unit_test(test_named_and_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
