/* SPDX-License-Identifier: MIT */
/* The expert store's check of its own state, on stores that have worked: with experts in RAM, and
 * on a device with slots lent. Each field that is changed alone is noticed; likewise the slots'
 * memory and the host tier. Usage: test_store_sane ORACLE-FOLDER */
#include "tests/offload/store_fixture.h"

#include <stdio.h>
#include <string.h>

#include "cache/expert_cache_state.h"
#include "offload/expert_store_state.h"
#include "offload/mover_state.h"

#define SIM_DEVICE "sim:memory=64M,link=8GB/s,latency=2us"

static char model_path[1024];

/* The store is sane, is not when field is value, and is again when it is what it was. */
#define NOTICED(field, value)                                                                      \
    do {                                                                                           \
        __typeof__((field) + 0) was = field;                                                       \
        assert_true(moe_expert_store_is_sane(store));                                              \
        field = (value);                                                                           \
        assert_true(field != was);                                                                 \
        assert_false(moe_expert_store_is_sane(store));                                             \
        field = was;                                                                               \
        assert_true(moe_expert_store_is_sane(store));                                              \
    } while (0)

/* Two layers have been asked for, and an expert of the first is protected. */
static moe_expert_store *open_and_use(store_fixture *f, const char *device)
{
    moe_error err = {""};
    const uint32_t experts[] = {0, 1, 2};
    store_fixture_open_on(f, device, model_path, 0.5, NULL, NULL);
    moe_expert_store *store = f->engine->runner.experts;
    for (uint32_t layer = 0; layer < 2; layer++) {
        assert_int_equal(store_request(f, layer, 1, experts, 3, &err), MOE_OK);
    }
    assert_true(moe_expert_store_is_sane(store));
    moe_expert_store_foresee(store, 0, 2, experts, 1);
    assert_int_equal(store->n_foreseen, 1);
    assert_true(moe_expert_store_is_sane(store));
    return store;
}

static uint32_t empty_slot(const moe_expert_store *store)
{
    uint32_t slot = 0;
    while (moe_expert_cache_key_of(store->cache, slot) != MOE_KEY_NONE) {
        slot++;
    }
    assert_true(slot < store->arena.n_slots);
    return slot;
}

static void test_pins(void **state)
{
    (void)state;
    store_fixture f;
    moe_expert_store *store = open_and_use(&f, "cpu");
    uint32_t slot = moe_key_list_first(&store->foreseen, 0);
    uint32_t key = moe_expert_cache_key_of(store->cache, slot);
    uint32_t other = moe_expert_cache_find(store->cache, moe_store_key(store, 1, 2));
    uint32_t empty = empty_slot(store);
    NOTICED(store->slots[slot].holds, 0);
    NOTICED(store->slots[slot].holds, MOE_HOLD_KEPT);
    NOTICED(store->slots[slot].holds, MOE_HOLD_FORESEEN | MOE_HOLD_KEPT);
    NOTICED(store->slots[other].holds, MOE_HOLD_FORESEEN);
    NOTICED(store->slots[other].holds, MOE_HOLD_KEPT);
    NOTICED(store->slots[other].holds, MOE_HOLD_WAVE);
    NOTICED(store->slots[other].holds, MOE_HOLD_AHEAD);
    NOTICED(store->slots[empty].holds, MOE_HOLD_KEPT);
    NOTICED(store->n_foreseen, 0);
    NOTICED(store->n_foreseen, 2);
    NOTICED(store->n_ahead, 1);
    NOTICED(store->cache->pins[key], 2);
    moe_key_list_push_front(&store->ahead, 0, other);
    assert_false(moe_expert_store_is_sane(store)); /* it does not move */
    moe_key_list_remove(&store->ahead, other);
    assert_true(moe_expert_store_is_sane(store));
    store_fixture_close(&f);
}

static void test_wave(void **state)
{
    (void)state;
    store_fixture f;
    moe_expert_store *store = open_and_use(&f, "cpu");
    const uint32_t experts[] = {0, 1, 2};
    const uint32_t n_rows[] = {1, 1, 1};
    moe_error err = {""};
    moe_layer_request request = {
        .layer = 1, .pass = 2, .experts = experts, .n_rows = n_rows, .n = 3};
    assert_int_equal(moe_expert_store_begin(store, &request, &err), MOE_OK);
    assert_int_equal(store->n_wave, 3);
    NOTICED(store->n_wave, 2);
    NOTICED(store->n_wave, 4);
    NOTICED(store->n_delivered, 1);
    NOTICED(store->request.n, 2);
    NOTICED(store->request.n, store->options.map->n_expert + 1);
    NOTICED(store->wave[1].slot, store->wave[0].slot);
    NOTICED(store->wave[1].position, 0);
    NOTICED(store->wave[1].position, 3);
    NOTICED(store->handled[0], false);
    NOTICED(store->delivered[0], true);
    NOTICED(store->keys[0], moe_store_key(store, 0, 2));
    assert_int_equal(store_finish(&f, 1, experts, 3, &err), MOE_OK);
    assert_true(moe_expert_store_is_sane(store));
    store_fixture_close(&f);
}

static void test_slots(void **state)
{
    (void)state;
    store_fixture f;
    moe_expert_store *store = open_and_use(&f, "cpu");
    uint32_t slot = moe_expert_cache_find(store->cache, moe_store_key(store, 1, 2));
    uint32_t empty = empty_slot(store);
    moe_mover_slot *slots = store->mover->slots;
    NOTICED(slots[slot].state, MOE_SLOT_LOADING); /* under way, and nobody has pinned it */
    NOTICED(slots[slot].state, MOE_SLOT_QUEUED);
    NOTICED(slots[empty].state, MOE_SLOT_READY);
    NOTICED(slots[empty].state, MOE_SLOT_LOADING);
    for (int use = 0; use < MOE_USE_COUNT; use++) {
        if (use != MOE_USE_RESIDENT) {
            NOTICED(store->slots[slot].use, (uint8_t)use);
        }
        if (use != MOE_USE_EMPTY) {
            NOTICED(store->slots[empty].use, (uint8_t)use);
        }
    }
    NOTICED(store->slots[slot].saved_key, 0); /* there is no host tier */
    NOTICED(store->n_retired, 1);
    NOTICED(store->n_host, 1);
    NOTICED(store->cache->key_of_slot[empty], 0);
    NOTICED(store->cache->n_slots, store->arena.n_slots + 1);
    store_fixture_close(&f);
}

static void test_arena(void **state)
{
    (void)state;
    store_fixture f;
    moe_expert_store *store = open_and_use(&f, "cpu");
    moe_slot_arena *arena = &store->arena;
    moe_slot_class *class = &arena->classes[0];
    NOTICED(arena->device, NULL);
    NOTICED(arena->memory, NULL);
    NOTICED(arena->memory, arena->memory + 8);
    NOTICED(arena->bytes, arena->bytes + 64);
    NOTICED(arena->n_slots, arena->n_slots - 1);
    NOTICED(arena->n_classes, 0);
    NOTICED(arena->n_classes, arena->n_layer + 1);
    NOTICED(arena->class_of_layer[0], arena->n_classes);
    NOTICED(class->first_slot, 1);
    NOTICED(class->n_slots, class->n_slots - 1);
    NOTICED(class->n_slots, 0);
    NOTICED(class->n_experts, class->n_slots - 1);
    NOTICED(class->arena_offset, 64);
    NOTICED(class->slot_bytes, class->slot_bytes + 64);
    NOTICED(class->slot_bytes, class->slot_bytes + 1);
    NOTICED(class->buffer_offset[0], 64);
    NOTICED(class->buffer_offset[1], class->buffer_offset[1] + 1);
    NOTICED(class->buffer_offset[1], class->buffer_offset[2] + 64);
    NOTICED(class->part_bytes[2], class->slot_bytes);
    store_fixture_close(&f);
}

static void test_loans(void **state)
{
    (void)state;
    store_fixture f;
    moe_error err = {""};
    void *memory;
    moe_expert_store *store = open_and_use(&f, SIM_DEVICE);
    size_t bytes = moe_slot_arena_slot_bytes(&store->arena, 0) / 2;
    assert_int_equal(moe_store_lend(store, bytes, &memory, &err), MOE_OK);
    assert_int_equal(store->n_loans, 1);
    moe_slot_loan *loan = &store->loans[0];
    NOTICED(store->n_loans, 0);
    NOTICED(store->n_loans, store->loan_capacity + 1);
    NOTICED(loan->first, loan->first == 0 ? 1 : loan->first - 1);
    NOTICED(loan->first, store->arena.n_slots);
    NOTICED(loan->n_run, 0);
    NOTICED(loan->n_run, store->arena.n_slots);
    NOTICED(loan->memory, loan->memory + 64);
    NOTICED(loan->part_bytes, loan->n_run * moe_slot_arena_slot_bytes(&store->arena, 0) + 64);
    NOTICED(loan->n_parts, 0);
    NOTICED(loan->n_parts, MOE_MOST_LOAN_PARTS + 1);
    NOTICED(loan->used, 0);
    NOTICED(loan->used, UINT64_C(1) << loan->n_parts);
    NOTICED(store->cache->closed[loan->first], false);
    moe_store_end_loan(store, memory);
    store_fixture_close(&f);
}

/* A slot that goes a way that it must not go is taken out of use, and the step that met it fails,
 * once. Assertions would end the program here. */
static void test_retired(void **state)
{
    (void)state;
    const moe_slot_use wrong[] = {MOE_USE_MOVING, MOE_USE_GIVEN, MOE_USE_CLOSED, MOE_USE_LENT};
    const uint32_t experts[] = {4, 5, 6};
    if (MOE_ASSERTS_ARE_ON) {
        skip();
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        store_fixture f;
        moe_error err = {""};
        moe_expert_store *store = open_and_use(&f, "cpu");
        uint32_t next = empty_slot(store);
        moe_cache_domain *domain = &store->cache->domains[0];
        next = store->cache->free_slots[domain->first_slot + domain->n_free - 1];
        store->slots[next].use = (uint8_t)wrong[i];
        assert_int_equal(store_request(&f, 0, 2, experts, 3, &err), MOE_ERR_INTERNAL);
        assert_non_null(strstr(err.message, "out of use"));
        assert_int_equal(store->slots[next].use, MOE_USE_RETIRED);
        assert_true(moe_expert_store_is_sane(store));
        assert_int_equal(store_request(&f, 0, 2, experts, 3, &err), MOE_OK);
        assert_int_equal(store->n_retired, 1);
        assert_int_equal(moe_expert_cache_key_of(store->cache, next), MOE_KEY_NONE);
        assert_true(moe_expert_store_is_sane(store));
        store_fixture_close(&f);
    }
}

static void test_host_tier(void **state)
{
    (void)state;
    store_fixture f;
    moe_expert_store *store = open_and_use(&f, SIM_DEVICE);
    moe_expert_cache *host = moe_host_tier_cache(store->host);
    moe_slot_arena *arena = (moe_slot_arena *)(uintptr_t)moe_host_tier_arena(store->host);
    NOTICED(host->n_resident, host->n_resident + 1);
    NOTICED(host->n_slots, host->n_slots - 1);
    NOTICED(arena->bytes, arena->bytes + 64);
    uint32_t key = 0;
    while (!moe_host_tier_has(store->host, key)) {
        key++;
    }
    const uint8_t **data = (const uint8_t **)(uintptr_t)moe_host_tier_data(store->host, key);
    for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
        NOTICED(data[p], NULL);
        NOTICED(data[p], arena->memory + arena->bytes);
    }
    uint32_t empty = empty_slot(store);
    NOTICED(store->slots[empty].saved_key, key);
    NOTICED(store->n_saving, 1);
    NOTICED(host->above, host);
    NOTICED(store->cache->below, NULL);
    store_fixture_close(&f);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        return 2;
    }
    snprintf(model_path, sizeof model_path, "%s/olmoe/model.gguf", argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pins),    cmocka_unit_test(test_wave),
        cmocka_unit_test(test_slots),   cmocka_unit_test(test_arena),
        cmocka_unit_test(test_loans),   cmocka_unit_test(test_host_tier),
        cmocka_unit_test(test_retired),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
