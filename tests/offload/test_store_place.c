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
    options->host_compute = MOE_SWITCH_OFF;
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

int main(int argc, char **argv)
{
    if (argc != 3) {
        return 2;
    }
    model_path = argv[1];
    is_shifted = strcmp(argv[2], "shifted") == 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reach),
        cmocka_unit_test(link_that_does_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
