/* SPDX-License-Identifier: MIT */
/* Where a device can read experts: in its own slots, and in host slots that its link can read, if
 * the parts lie there as aligned as kernels need them. All bytes there are the file's.
 * Usage: test_store_place MODEL.gguf aligned|shifted; shifted: tensors begin at 8 modulo 16. */
#include "tests/offload/store_fixture.h"

#include <stdlib.h>
#include <string.h>

#define SIM_DEVICE "sim:memory=64M,link=8GB/s,latency=2us"
#define N_USED     4u

static const char *model_path;
static bool is_shifted;
static bool link_reads;
static const moe_link_ops *true_link;

static bool reads_host(moe_device *device, const void *memory, size_t bytes)
{
    (void)device;
    return link_reads && memory != NULL && bytes > 0;
}

static void change(moe_expert_store_options *options, void *user)
{
    static moe_link_ops link;
    (void)user;
    true_link = options->device->link;
    link = *true_link;
    link.reads_host = reads_host;
    options->device->link = &link;
    options->host_budget_bytes = 2 * options->map->expert_bytes; /* no host slot is given up */
}

/* Counts the experts of all layers by their reach; compares the bytes where they can be read. */
static void count(store_fixture *f, bool in_place, uint32_t n[3])
{
    moe_expert_store *store = f->engine->runner.experts;
    uint32_t n_expert = f->map->n_expert;
    uint8_t *reach = malloc(n_expert);
    moe_expert_address *addresses = calloc(n_expert, sizeof *addresses);
    memset(n, 0, 3 * sizeof *n);
    moe_expert_store_settle(store);
    for (uint32_t l = 0; l < f->map->n_layer; l++) {
        if (f->map->layers[l].experts == NULL) {
            continue;
        }
        moe_expert_store_reach(store, l, in_place, reach, addresses);
        for (uint32_t e = 0; e < n_expert; e++) {
            n[reach[e]]++;
            for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
                const moe_tensor_ref *ref = &f->map->layers[l].experts[e].parts[p];
                const void *at = addresses[e].parts[p];
                assert_true((at != NULL) == (reach[e] != MOE_REACH_NONE));
                if (at != NULL) {
                    assert_int_equal((uintptr_t)at % 16, 0);
                    assert_memory_equal(at, f->file + ref->offset, ref->size);
                }
            }
        }
    }
    free(addresses);
    free(reach);
}

static void reach(void **state)
{
    (void)state;
    store_fixture f;
    uint32_t experts[N_USED], n[3];
    link_reads = true;
    store_fixture_open_on(&f, SIM_DEVICE, model_path, 0.34, change, NULL);
    for (uint64_t pass = 0; pass < 3; pass++) {
        for (uint32_t l = 0; l < f.map->n_layer; l++) {
            for (uint32_t i = 0; i < N_USED; i++) {
                experts[i] = (uint32_t)(pass * 2 + i) % f.map->n_expert;
            }
            assert_int_equal(store_request(&f, l, pass, experts, N_USED, NULL), MOE_OK);
        }
        moe_expert_store_end_pass(f.engine->runner.experts, pass);
    }
    count(&f, true, n);
    assert_true(n[MOE_REACH_DEVICE] > 0);
    assert_true((n[MOE_REACH_HOST] == 0) == is_shifted);
    count(&f, false, n);
    assert_true(n[MOE_REACH_DEVICE] > 0 && n[MOE_REACH_HOST] == 0);
    moe_expert_store_close(&f.engine->runner.experts);
    f.engine->device->link = true_link;
    store_fixture_close(&f);
}

static void link_that_does_not(void **state)
{
    (void)state;
    store_fixture f;
    uint32_t experts[N_USED] = {0, 1, 2, 3}, n[3];
    link_reads = false;
    store_fixture_open_on(&f, SIM_DEVICE, model_path, 0.34, change, NULL);
    assert_int_equal(store_request(&f, 0, 0, experts, N_USED, NULL), MOE_OK);
    count(&f, true, n);
    assert_true(n[MOE_REACH_DEVICE] > 0 && n[MOE_REACH_HOST] == 0);
    moe_expert_store_close(&f.engine->runner.experts);
    f.engine->device->link = true_link;
    store_fixture_close(&f);
}

/* Tells the store that the device has read a layer's experts, where `reach` says, and put each of
 * those in host memory into the slot of an offer. Copies the bytes as the device would. */
static void play_layer(store_fixture *f, uint32_t layer, uint64_t pass, const uint32_t *experts,
                       const uint8_t *reach, const moe_kept_expert *kept, uint32_t n_kept)
{
    moe_expert_store *store = f->engine->runner.experts;
    uint32_t rows[N_USED], positions[N_USED], n = 1;
    moe_expert_view views[N_USED];
    moe_error err;
    for (uint32_t i = 0; i < n_kept; i++) {
        for (int p = 0; p < MOE_EXPERT_PARTS; p++) {
            const moe_tensor_ref *ref = &f->map->layers[layer].experts[kept[i].expert].parts[p];
            memcpy((void *)(uintptr_t)kept[i].offer->place.parts[p], f->file + ref->offset,
                   ref->size);
        }
    }
    for (uint32_t i = 0; i < N_USED; i++) {
        rows[i] = 1;
    }
    const moe_played_layer played = {.reach = reach, .kept = kept, .n_kept = n_kept};
    moe_layer_request request = {.layer = layer,
                                 .pass = pass,
                                 .experts = experts,
                                 .n_rows = rows,
                                 .n = N_USED,
                                 .played = &played};
    assert_int_equal(moe_expert_store_begin(store, &request, &err), MOE_OK);
    while (n > 0) {
        assert_int_equal(moe_expert_store_next(store, positions, views, &n, &err), MOE_OK);
    }
    assert_true(moe_expert_store_is_sane(store));
}

/* Room for what a pass is told and tells. */
typedef struct played {
    uint8_t reach[256];
    moe_expert_address addresses[256];
    moe_slot_offer offers[MOE_MOST_OFFERS];
    moe_kept_expert kept[N_USED];
    uint32_t n_kept, n_over_link;
    bool complete; /* every expert is in reach */
} played;

/* Puts experts in host memory into the slots that the store offers, except those that the layer may
 * use. */
static void take_offers(store_fixture *f, uint32_t layer, const uint32_t *experts, played *p)
{
    moe_expert_store *store = f->engine->runner.experts;
    uint32_t o = 0;
    moe_expert_store_settle(store);
    moe_expert_store_reach(store, layer, true, p->reach, p->addresses);
    uint32_t n_offers = moe_expert_store_offer(store, layer, 6, p->offers);
    assert_true(n_offers <= 6);
    p->n_kept = p->n_over_link = 0;
    p->complete = true;
    for (uint32_t i = 0; i < N_USED; i++) {
        p->complete = p->complete && p->reach[experts[i]] != MOE_REACH_NONE;
        if (p->reach[experts[i]] != MOE_REACH_HOST) {
            continue;
        }
        p->n_over_link++;
        while (o < n_offers && p->offers[o].key / f->map->n_expert == layer) {
            o++;
        }
        if (o < n_offers) {
            assert_true(moe_expert_store_offer_holds(store, &p->offers[o]));
            p->kept[p->n_kept++] = (moe_kept_expert){experts[i], &p->offers[o++]};
        }
    }
}

static void play_and_count(store_fixture *f, uint32_t layer, uint64_t pass, const uint32_t *experts,
                           const played *p)
{
    moe_expert_store *store = f->engine->runner.experts;
    moe_expert_store_stats first, last;
    moe_expert_store_get_stats(store, &first);
    play_layer(f, layer, pass, experts, p->reach, p->kept, p->n_kept);
    moe_expert_store_get_stats(store, &last);
    assert_int_equal(last.kept - first.kept, p->n_kept);
    assert_int_equal(last.misses - first.misses, p->n_over_link);
    assert_int_equal(last.hits - first.hits, N_USED - p->n_over_link);
    assert_int_equal(last.read_in_place - first.read_in_place, p->n_over_link);
    for (uint32_t i = 0; i < p->n_kept; i++) {
        assert_false(moe_expert_store_offer_holds(store, p->kept[i].offer));
    }
}

/* A pass fills the slots that it was offered: the store knows of it, counts what a move would have
 * counted, and what was in the slots is in host memory alone. */
static void kept(void **state)
{
    (void)state;
    static played p;
    store_fixture f;
    uint32_t experts[N_USED], n[3], n_kept = 0;
    link_reads = true;
    store_fixture_open_on(&f, SIM_DEVICE, model_path, 0.34, change, NULL);
    moe_expert_store *store = f.engine->runner.experts;
    assert_true(f.map->n_expert <= sizeof p.reach);
    for (uint64_t pass = 0; pass < 12; pass++) {
        for (uint32_t l = 0; l < f.map->n_layer; l++) {
            for (uint32_t i = 0; i < N_USED; i++) { /* all of eight in turns */
                experts[i] = (uint32_t)(pass % 2 + i * 2);
            }
            p.complete = false;
            if (pass >= 3) {
                take_offers(&f, l, experts, &p);
            }
            if (p.complete) {
                play_and_count(&f, l, pass, experts, &p);
                n_kept += p.n_kept;
            } else {
                assert_int_equal(store_request(&f, l, pass, experts, N_USED, NULL), MOE_OK);
            }
        }
        moe_expert_store_end_pass(store, pass);
        count(&f, true, n); /* compares all bytes that can be read */
    }
    assert_true((n_kept > 0) != is_shifted);
    moe_expert_store_close(&f.engine->runner.experts);
    f.engine->device->link = true_link;
    store_fixture_close(&f);
}

/* Opens the store, and serves two passes of all layers with experts 0 to 3 and 4 to 7. */
static moe_expert_store *open_used(store_fixture *f)
{
    uint32_t experts[N_USED];
    link_reads = true;
    store_fixture_open_on(f, SIM_DEVICE, model_path, 0.34, change, NULL);
    for (uint64_t pass = 0; pass < 2; pass++) {
        for (uint32_t l = 0; l < f->map->n_layer; l++) {
            for (uint32_t i = 0; i < N_USED; i++) {
                experts[i] = (uint32_t)pass * N_USED + i;
            }
            assert_int_equal(store_request(f, l, pass, experts, N_USED, NULL), MOE_OK);
        }
        moe_expert_store_end_pass(f->engine->runner.experts, pass);
    }
    return f->engine->runner.experts;
}

static void wait_for_moves(moe_expert_store *store, uint32_t layer, uint32_t expert)
{
    static played p;
    do {
        moe_expert_store_settle(store);
        moe_expert_store_reach(store, layer, true, p.reach, p.addresses);
    } while (p.reach[expert] == MOE_REACH_HOST);
}

/* An expert that a pass kept, and that was on its way to the device by then: it has the slot that
 * it moves to, and its address says that it should not be kept. */
static void kept_in_vain(void **state)
{
    (void)state;
    static played p;
    store_fixture f;
    uint32_t experts[N_USED] = {0, 1, 2, 3}, n[3], n_tried = 0;
    moe_expert_store_stats first, last;
    moe_expert_store *store = open_used(&f);
    for (uint32_t l = 0; l < f.map->n_layer; l++) {
        take_offers(&f, l, experts, &p);
        if (!p.complete || p.n_kept < 2) {
            continue;
        }
        const moe_kept_expert *vain = &p.kept[p.n_kept - 1]; /* the move takes the first offer */
        uint32_t coming = vain->expert;
        assert_int_equal(p.addresses[coming].over_link, 1);
        moe_expert_store_prefetch(store, l, 2, &coming, 1, 1);
        assert_true(moe_expert_store_offer_holds(store, vain->offer));
        moe_expert_store_reach(store, l, true, p.reach, p.addresses);
        assert_true(p.reach[coming] != MOE_REACH_HOST ||
                    p.addresses[coming].over_link == MOE_OVER_LINK_COMING);
        p.reach[coming] = MOE_REACH_HOST; /* as the pass was told */
        uint64_t before = moe_expert_store_settle(store);
        moe_expert_store_get_stats(store, &first);
        play_layer(&f, l, 2, experts, p.reach, vain, 1);
        moe_expert_store_get_stats(store, &last);
        assert_int_equal(last.kept, first.kept);
        assert_true(moe_expert_store_settle(store) != before);
        wait_for_moves(store, l, coming);
        count(&f, true, n); /* compares all bytes that can be read */
        n_tried++;
    }
    assert_true((n_tried > 0) != is_shifted);
    moe_expert_store_close(&f.engine->runner.experts);
    f.engine->device->link = true_link;
    store_fixture_close(&f);
}

/* Of a pass that failed nobody knows what it kept. */
static void lost(void **state)
{
    (void)state;
    static played p;
    store_fixture f;
    uint32_t experts[N_USED] = {0, 1, 2, 3}, before[3], n[3], n_lost = 0;
    link_reads = true;
    store_fixture_open_on(&f, SIM_DEVICE, model_path, 0.34, change, NULL);
    moe_expert_store *store = f.engine->runner.experts;
    for (uint32_t l = 0; l < f.map->n_layer; l++) {
        assert_int_equal(store_request(&f, l, 0, experts, N_USED, NULL), MOE_OK);
    }
    moe_expert_store_end_pass(store, 0);
    count(&f, true, before);
    uint32_t n_offers = moe_expert_store_offer(store, 0, MOE_MOST_OFFERS, p.offers);
    for (uint32_t i = 0; i < n_offers; i++) {
        n_lost += p.offers[i].key != MOE_KEY_NONE;
        moe_expert_store_lose_offer(store, &p.offers[i]);
        assert_true(moe_expert_store_is_sane(store));
    }
    count(&f, true, n);
    assert_int_equal(n[MOE_REACH_DEVICE], before[MOE_REACH_DEVICE] - n_lost);
    assert_true((n_lost > 0) != is_shifted);
    moe_expert_store_close(&f.engine->runner.experts);
    f.engine->device->link = true_link;
    store_fixture_close(&f);
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        return 2;
    }
    model_path = argv[1];
    is_shifted = strcmp(argv[2], "shifted") == 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reach), cmocka_unit_test(link_that_does_not),
        cmocka_unit_test(kept),  cmocka_unit_test(kept_in_vain),
        cmocka_unit_test(lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
