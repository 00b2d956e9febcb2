/* SPDX-License-Identifier: MIT */
/* The cache's check of its own state: a cache in use passes, and the check notices each field that
 * is changed alone, or together with a field that would hide the change from a weaker check. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cache/expert_cache_state.h"

#define N_LAYER  4
#define N_EXPERT 8

/* Layers 0 and 1 in 6 slots of class 0, layer 3 in 4 slots of class 1, layer 2 without experts. */
static moe_expert_cache *make_cache(bool per_layer)
{
    const uint32_t classes[N_LAYER] = {0, 0, UINT32_MAX, 1};
    const uint32_t slots[] = {6, 4};
    moe_expert_cache_options options = {.n_layer = N_LAYER,
                                        .n_expert = N_EXPERT,
                                        .n_expert_used = 2,
                                        .class_of_layer = classes,
                                        .n_classes = 2,
                                        .slots_of_class = slots,
                                        .per_layer = per_layer,
                                        .policy = moe_policy_at(0)};
    moe_expert_cache *cache = NULL;
    moe_error err = {""};
    assert_int_equal(moe_expert_cache_create(&cache, &options, &err), MOE_OK);
    return cache;
}

/* Resident keys, one of them pinned and one prefetched; a hit, free slots, and a closed slot. */
static moe_expert_cache *make_used_cache(bool per_layer)
{
    moe_expert_cache *cache = make_cache(per_layer);
    bool hit;
    uint32_t evicted;
    uint32_t closed;
    const uint32_t keys[] = {0, 9, 24, 0};
    for (uint32_t i = 0; i < 4; i++) {
        moe_policy_access access = {.pass = 1, .layer = keys[i] / N_EXPERT, .n_rows = 1};
        (void)moe_expert_cache_access(cache, keys[i], &access, &hit, &evicted);
    }
    moe_expert_cache_pin(cache, 9);
    moe_policy_access ahead = {.pass = 1, .layer = 3};
    (void)moe_expert_cache_prefetch(cache, 25, &ahead, &evicted);
    assert_true(moe_expert_cache_close(cache, 0, 1, &closed));
    assert_true(moe_expert_cache_is_sane(cache));
    return cache;
}

/* field is sane, is not when it is value, and is again when it is what it was. */
#define NOTICED(cache, field, value)                                                               \
    do {                                                                                           \
        __typeof__(field) was = field;                                                             \
        field = (value);                                                                           \
        assert_true(field != was);                                                                 \
        assert_false(moe_expert_cache_is_sane(cache));                                             \
        field = was;                                                                               \
        assert_true(moe_expert_cache_is_sane(cache));                                              \
    } while (0)

static void test_fields_of_the_cache(void **state)
{
    (void)state;
    moe_expert_cache *cache = make_used_cache(false);
    NOTICED(cache, cache->policy, NULL);
    NOTICED(cache, cache->n_layer, N_LAYER - 1);
    NOTICED(cache, cache->n_expert, N_EXPERT + 1);
    NOTICED(cache, cache->n_expert, 0);
    NOTICED(cache, cache->n_keys, cache->n_keys - 1);
    NOTICED(cache, cache->n_slots, cache->n_slots - 1);
    NOTICED(cache, cache->n_domains, 0);
    NOTICED(cache, cache->n_domains, 1);
    NOTICED(cache, cache->domain_of_layer[0], 1);
    NOTICED(cache, cache->domain_of_layer[1], MOE_DOMAIN_NONE);
    NOTICED(cache, cache->domain_of_layer[2], 2);
    NOTICED(cache, cache->n_resident, cache->n_resident + 1);
    NOTICED(cache, cache->n_changes, 1);
    NOTICED(cache, cache->stats.prefetch_inserts, 2);
    NOTICED(cache, cache->stats.prefetch_used, 1);
    NOTICED(cache, cache->stats.prefetch_wasted, 1);
    NOTICED(cache, cache->stats.prefetch_dropped, 1);
    NOTICED(cache, cache->stats.evictions, 1);
    NOTICED(cache, cache->stats.misses, 1);
    moe_expert_cache_destroy(&cache);
}

static void test_slots_and_keys(void **state)
{
    (void)state;
    moe_expert_cache *cache = make_used_cache(false);
    uint32_t slot = cache->slot_of_key[0];
    uint32_t closed = 0;
    while (!cache->closed[closed]) {
        closed++;
    }
    NOTICED(cache, cache->slot_of_key[0], MOE_SLOT_NONE);
    NOTICED(cache, cache->slot_of_key[0], cache->slot_of_key[9]);
    NOTICED(cache, cache->slot_of_key[0], cache->n_slots);
    NOTICED(cache, cache->slot_of_key[1], slot);
    NOTICED(cache, cache->key_of_slot[slot], MOE_KEY_NONE);
    NOTICED(cache, cache->key_of_slot[slot], 1);
    NOTICED(cache, cache->key_of_slot[slot], cache->n_keys);
    NOTICED(cache, cache->key_of_slot[closed], 3);
    NOTICED(cache, cache->closed[closed], false);
    NOTICED(cache, cache->closed[slot], true);
    NOTICED(cache, cache->pins[9], 0);
    NOTICED(cache, cache->pins[0], 1);
    NOTICED(cache, cache->pins[1], 1);
    NOTICED(cache, cache->prefetched[25], false);
    NOTICED(cache, cache->prefetched[0], true);
    NOTICED(cache, cache->prefetched[1], true);
    uint32_t *stack = &cache->free_slots[cache->domains[0].first_slot];
    assert_true(cache->domains[0].n_free >= 2);
    NOTICED(cache, stack[0], stack[1]); /* twice: another one is lost */
    NOTICED(cache, stack[0], slot);
    NOTICED(cache, stack[0], closed);
    NOTICED(cache, stack[0], cache->domains[1].first_slot);
    moe_expert_cache_destroy(&cache);
}

static void test_fields_of_a_domain(void **state)
{
    (void)state;
    for (int per_layer = 0; per_layer < 2; per_layer++) {
        moe_expert_cache *cache = make_used_cache(per_layer == 1);
        for (uint32_t d = 0; d < cache->n_domains; d++) {
            moe_cache_domain *domain = &cache->domains[d];
            NOTICED(cache, domain->cache, NULL);
            NOTICED(cache, domain->state, NULL);
            NOTICED(cache, domain->first_key, domain->first_key + 1);
            NOTICED(cache, domain->n_layers, domain->n_layers + 1);
            NOTICED(cache, domain->first_slot, domain->first_slot + 1);
            NOTICED(cache, domain->n_slots, domain->n_slots - 1);
            NOTICED(cache, domain->n_slots, domain->n_slots + 1);
            NOTICED(cache, domain->n_open, domain->n_open - 1);
            NOTICED(cache, domain->n_open, domain->n_slots + 1);
            NOTICED(cache, domain->n_free, domain->n_free + 1);
            NOTICED(cache, domain->n_free, domain->n_free - 1);
            NOTICED(cache, domain->n_pinned, domain->n_pinned + 1);
            NOTICED(cache, domain->n_spare, 1); /* there is no tier above */
        }
        NOTICED(cache, cache->domains[0].class_id, 2);
        moe_expert_cache_destroy(&cache);
    }
    moe_expert_cache *cache = make_used_cache(false);
    NOTICED(cache, cache->domains[0].single_layer, true);
    moe_expert_cache_destroy(&cache);
}

/* The O(1) part, which is asked after every change. */
static void test_counts(void **state)
{
    (void)state;
    moe_expert_cache *cache = make_used_cache(false);
    moe_cache_domain *domain = &cache->domains[0];
    moe_cache_domain sane = *domain;
    assert_true(moe_cache_domain_counts_are_sane(cache, domain));
    domain->n_open = domain->n_slots + 1;
    assert_false(moe_cache_domain_counts_are_sane(cache, domain));
    *domain = sane;
    domain->n_free = domain->n_open + 1;
    assert_false(moe_cache_domain_counts_are_sane(cache, domain));
    *domain = sane;
    domain->n_pinned = domain->n_open - domain->n_free + 1;
    assert_false(moe_cache_domain_counts_are_sane(cache, domain));
    *domain = sane;
    cache->n_resident = cache->n_slots + 1;
    assert_false(moe_cache_domain_counts_are_sane(cache, domain));
    cache->n_resident = 4;
    assert_true(moe_cache_domain_counts_are_sane(cache, domain));
    moe_expert_cache_destroy(&cache);
}

static void test_stack(void **state)
{
    (void)state;
    moe_expert_cache *above = make_cache(false);
    moe_expert_cache *below = make_cache(true);
    const uint32_t keys[] = {0, 9, 24};
    bool hit;
    uint32_t evicted;
    assert_true(moe_expert_cache_stack(below, above));
    for (uint32_t i = 0; i < 3; i++) {
        moe_policy_access access = {.pass = 1, .layer = keys[i] / N_EXPERT, .n_rows = 1};
        (void)moe_expert_cache_access(above, keys[i], &access, &hit, &evicted);
        (void)moe_expert_cache_access(below, keys[i], &access, &hit, &evicted);
    }
    moe_expert_cache_pin(above, 9);
    assert_int_equal(moe_expert_cache_n_spare(below, 0), 1);
    NOTICED(below, below->domains[0].n_spare, 0);
    NOTICED(below, below->domains[0].n_spare, 2);
    NOTICED(below, below->above, NULL);
    NOTICED(below, above->below, NULL);
    moe_expert_cache_destroy(&above);
    moe_expert_cache_destroy(&below);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fields_of_the_cache),
        cmocka_unit_test(test_slots_and_keys),
        cmocka_unit_test(test_fields_of_a_domain),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_stack),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
