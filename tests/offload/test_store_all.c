/* SPDX-License-Identifier: MIT */
/* Reading every expert in the background, where each has a slot: demands overtake these reads, a
 * layer cancels none of them, each byte is read once, and nothing waits after the last. Where slots
 * are missing, a layer cancels what has not begun. Usage: test_store_all MODEL.gguf */
#include "tests/offload/store_fixture.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MAX_READS 4096u
#define MAX_KEYS  1024u
#define N_ASKED   3u
/* Background reads that the mover may have begun before a demand comes. */
#define MOST_BEGUN 1u

static const char *model_path;

/* All reads, in the order in which they went to the disk. */
typedef struct reads {
    store_fixture *f;
    moe_fault (*choose)(void *user, const moe_io_read *read, uint64_t n);
    _Atomic uint32_t n;
    moe_io_read list[MAX_READS];
} reads;

static moe_fault record(void *user, const moe_io_read *read, uint64_t n)
{
    reads *r = user;
    const moe_fault fault = r->choose(r->f, read, n);
    const uint32_t at = atomic_load(&r->n);
    assert_true(at < MAX_READS);
    r->list[at] = *read;
    atomic_store(&r->n, at + 1);
    return fault;
}

static uint32_t last_layer(const store_fixture *f)
{
    uint32_t l = f->map->n_layer - 1;
    while (f->map->layers[l].experts == NULL) {
        l--;
    }
    return l;
}

static uint32_t list_keys(const store_fixture *f, uint32_t *keys)
{
    const uint32_t n_expert = f->map->n_expert;
    uint32_t n = 0;
    for (uint32_t key = 0; key < f->map->n_layer * n_expert; key++) {
        assert_true(n < MAX_KEYS);
        keys[n] = key;
        n += f->map->layers[key / n_expert].experts != NULL;
    }
    return n;
}

/* The place in the order of reads of the one that brings the first byte of an expert. */
static uint32_t find_read(const reads *r, const moe_expert_ref *expert)
{
    const uint64_t offset = expert->parts[MOE_EXPERT_GATE].offset;
    uint32_t i = 0;
    while (i < atomic_load(&r->n) &&
           (offset < r->list[i].offset || offset >= r->list[i].offset + r->list[i].size)) {
        i++;
    }
    return i;
}

/* Opens a store whose disk waits, and begins to read experts in the background. */
static uint32_t begin_warm(store_fixture *f, reads *r, double share)
{
    uint32_t keys[MAX_KEYS];
    store_fixture_open(f, model_path, share, NULL, NULL);
    *r = (reads){.f = f, .choose = f->fault.choose};
    f->fault.choose = record;
    f->fault.user = r;
    atomic_store(&f->hold, true);
    const uint32_t n_asked =
        moe_expert_store_warm(f->engine->runner.experts, keys, list_keys(f, keys));
    assert_true(n_asked > N_ASKED + MOST_BEGUN);
    return n_asked;
}

static moe_layer_request request_of(const uint32_t *experts, uint32_t layer)
{
    static const uint32_t n_rows[N_ASKED] = {1, 1, 1};
    return (moe_layer_request){
        .layer = layer, .pass = 1, .experts = experts, .n_rows = n_rows, .n = N_ASKED};
}

static void await_all(const store_fixture *f)
{
    uint8_t hops[MAX_KEYS];
    for (uint32_t l = 0; l < f->map->n_layer; l++) {
        for (uint32_t e = 0; f->map->layers[l].experts != NULL && e < f->map->n_expert; e++) {
            moe_expert_store_hops(f->engine->runner.experts, l, hops);
            while (hops[e] != 0) {
                store_sleep_ms(1);
                (void)moe_expert_store_settle(f->engine->runner.experts);
                moe_expert_store_hops(f->engine->runner.experts, l, hops);
            }
        }
    }
}

static void demands_overtake(void **state)
{
    (void)state;
    static reads r;
    store_fixture f;
    moe_error error = {""};
    moe_expert_store_stats stats;
    const uint32_t n_asked = begin_warm(&f, &r, 1.0);
    moe_expert_store *store = f.engine->runner.experts;
    const uint32_t layer = last_layer(&f);
    const uint32_t n_expert = f.map->n_expert;
    const uint32_t experts[N_ASKED] = {0, n_expert / 2, n_expert - 1};
    const moe_layer_request request = request_of(experts, layer);
    assert_int_equal(n_asked * moe_expert_ref_bytes(&f.map->layers[layer].experts[0]),
                     f.map->expert_bytes);
    assert_int_equal(moe_expert_store_begin(store, &request, &error), MOE_OK);
    atomic_store(&f.hold, false);
    assert_int_equal(store_finish(&f, layer, experts, N_ASKED, &error), MOE_OK);
    for (uint32_t i = 0; i < N_ASKED; i++) {
        assert_in_range(find_read(&r, &f.map->layers[layer].experts[experts[i]]), 0,
                        (MOST_BEGUN + i) * MOE_EXPERT_PARTS);
    }
    moe_expert_store_get_stats(store, &stats);
    assert_int_equal(stats.prefetches_cancelled, 0);
    await_all(&f);
    moe_expert_store_get_stats(store, &stats);
    assert_int_equal(stats.misses, 0);
    assert_int_equal(stats.hits, N_ASKED);
    assert_int_equal(stats.prefetches, n_asked);
    assert_int_equal(stats.prefetches_cancelled, 0);
    assert_int_equal(stats.bytes_disk_demand + stats.bytes_disk_prefetch, f.map->expert_bytes);
    assert_int_equal(stats.bytes_disk_demand,
                     N_ASKED * moe_expert_ref_bytes(&f.map->layers[layer].experts[0]));
    /* All is there: nothing is read or waited for any more. */
    const uint64_t wait_ns = stats.wait_ns;
    const uint32_t n_reads = atomic_load(&r.n);
    assert_int_equal(store_request(&f, layer, 2, experts, N_ASKED, &error), MOE_OK);
    assert_int_equal(store_request(&f, layer, 3, (const uint32_t[]){1, 2}, 2, &error), MOE_OK);
    moe_expert_store_get_stats(store, &stats);
    assert_int_equal(stats.wait_ns, wait_ns);
    assert_int_equal(stats.misses, 0);
    assert_int_equal(atomic_load(&r.n), n_reads);
    store_fixture_close(&f);
}

static void cancelled_without_slots(void **state)
{
    (void)state;
    static reads r;
    store_fixture f;
    moe_error error = {""};
    moe_expert_store_stats stats;
    const uint32_t n_asked = begin_warm(&f, &r, 0.5);
    const uint32_t layer = last_layer(&f);
    const uint32_t experts[N_ASKED] = {0, 1, 2};
    const moe_layer_request request = request_of(experts, layer);
    assert_int_equal(moe_expert_store_begin(f.engine->runner.experts, &request, &error), MOE_OK);
    atomic_store(&f.hold, false);
    assert_int_equal(store_finish(&f, layer, experts, N_ASKED, &error), MOE_OK);
    moe_expert_store_get_stats(f.engine->runner.experts, &stats);
    assert_in_range(stats.prefetches_cancelled, n_asked - MOST_BEGUN, n_asked);
    assert_int_equal(stats.misses, N_ASKED);
    store_fixture_close(&f);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: test_store_all MODEL.gguf\n");
        return 2;
    }
    alarm(100); /* a hang is a failure */
    model_path = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(demands_overtake),
        cmocka_unit_test(cancelled_without_slots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
