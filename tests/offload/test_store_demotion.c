/* SPDX-License-Identifier: MIT */
/* Experts that leave a device are copied back to host slots: memory holds as many distinct experts
 * as both tiers have slots, every byte that is handed over is the file's, and copies back that
 * fail, are refused or hang are lost copies and nothing else.
 * Usage: test_store_demotion MODEL.gguf, with at least 64 experts a layer. */
#include "tests/offload/store_fixture.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/clock.h"
#include "runtime/base/error.h"

#define SIM_DEVICE  "sim:memory=64M,link=8GB/s,latency=2us"
#define TIMEOUT_MS  1000u
#define FOR_EVER_MS 120000u /* longer than other work keeps a test from the processors */
#define MS          1000000u
#define N_USED      8u

static const char *model_path;
static const moe_link_ops *true_link;
static _Atomic bool saves_fail, saves_are_refused, saves_hang;

static int save_begin(moe_device *device, const moe_copy_range *ranges, uint32_t n_ranges,
                      uint64_t *ticket, moe_error *err)
{
    return atomic_load(&saves_are_refused)
               ? moe_fail(err, MOE_ERR_UNSUPPORTED, "refused on purpose")
               : true_link->save_begin(device, ranges, n_ranges, ticket, err);
}

static int save_state(moe_device *device, uint64_t ticket)
{
    int state = true_link->save_state(device, ticket);
    if (atomic_load(&saves_hang)) {
        return MOE_COPY_UNDER_WAY;
    }
    return state == MOE_OK && atomic_load(&saves_fail) ? MOE_ERR_DEVICE : state;
}

/* user: the share of the experts that the host tier gets bytes for, in percent, and the I/O
 * time-out in milliseconds. */
static void change(moe_expert_store_options *options, void *user)
{
    static moe_link_ops link;
    true_link = options->device->link;
    link = *true_link;
    link.save_begin = save_begin;
    link.save_state = save_state;
    options->device->link = &link;
    options->io_timeout_ns = ((const uint64_t *)user)[1] * MS;
    options->host_budget_bytes = options->map->expert_bytes / 100 * *(const uint64_t *)user;
}

static uint64_t dice; /* the fixture's belong to the reading thread */

static void open_with(store_fixture *f, double share, uint64_t host_percent, uint64_t timeout_ms)
{
    uint64_t settings[] = {host_percent, timeout_ms};
    atomic_store(&saves_fail, false);
    atomic_store(&saves_are_refused, false);
    atomic_store(&saves_hang, false);
    dice = 88172645463325252u;
    store_fixture_open_on(f, SIM_DEVICE, model_path, share, change, settings);
}

static void close_it(store_fixture *f)
{
    moe_expert_store_close(&f->engine->runner.experts);
    f->engine->device->link = true_link;
    store_fixture_close(f);
}

/* Passes over all layers with experts by chance; the status of the first layer that fails. */
static int use(store_fixture *f, uint64_t first_pass, uint32_t n_passes, moe_error *err)
{
    for (uint64_t pass = first_pass; pass < first_pass + n_passes; pass++) {
        for (uint32_t layer = 0; layer < f->map->n_layer; layer++) {
            uint32_t experts[N_USED];
            uint32_t first = (uint32_t)(store_random(&dice) >> 20) % (f->map->n_expert - N_USED);
            for (uint32_t i = 0; i < N_USED; i++) {
                experts[i] = first + i;
            }
            int status = store_request(f, layer, pass, experts, N_USED, err);
            if (status != MOE_OK) {
                return status;
            }
            assert_true(moe_expert_store_is_sane(f->engine->runner.experts));
        }
        moe_expert_store_end_pass(f->engine->runner.experts, pass);
    }
    return MOE_OK;
}

static moe_expert_store_stats stats_of(const store_fixture *f)
{
    moe_expert_store_stats stats;
    moe_expert_store_get_stats(f->engine->runner.experts, &stats);
    assert_true(stats.demoted_hits <= stats.host_hits);
    assert_true(stats.demoted + stats.demotions_lost <= stats.evictions);
    return stats;
}

/* With room for all experts in both tiers together, and for what is on its way, each is read once,
 * although neither tier alone could hold them. */
static void both_tiers_hold_all(void **state)
{
    (void)state;
    store_fixture f;
    open_with(&f, 0.5, 75, 30000);
    moe_expert_store_stats stats = stats_of(&f);
    uint64_t n_all = (uint64_t)f.map->n_layer * f.map->n_expert;
    assert_true(stats.n_slots < n_all && stats.n_host_slots < n_all);
    assert_true(stats.n_slots + stats.n_host_slots >= n_all + 3 * N_USED);
    assert_int_equal(use(&f, 0, 40, NULL), MOE_OK);
    stats = stats_of(&f);
    assert_true(stats.demoted > 0 && stats.demoted_hits > 0);
    assert_int_equal(stats.demotions_lost, 0);
    assert_true(stats.evictions > n_all); /* they have come and gone */
    assert_true(stats.host_misses <= n_all);
    assert_int_equal(stats.misses, stats.host_hits + stats.host_misses);
    close_it(&f);
}

/* With less, what is demoted is found again, and reads are fewer than evictions. */
static void small_tiers(void **state)
{
    (void)state;
    store_fixture f;
    open_with(&f, 0.3, 40, 30000);
    assert_int_equal(use(&f, 0, 40, NULL), MOE_OK);
    moe_expert_store_stats stats = stats_of(&f);
    assert_true(stats.demoted > 0 && stats.demoted_hits > 0);
    assert_int_equal(stats.demotions_lost, 0);
    assert_true(stats.bytes_demoted >= stats.demoted);
    close_it(&f);
}

static void lost_copies(void **state)
{
    (void)state;
    for (int refused = 0; refused < 2; refused++) {
        store_fixture f;
        open_with(&f, 0.3, 40, 30000);
        atomic_store(refused ? &saves_are_refused : &saves_fail, true);
        assert_int_equal(use(&f, 0, 20, NULL), MOE_OK);
        moe_expert_store_stats stats = stats_of(&f);
        assert_int_equal(stats.demoted, 0);
        assert_true(stats.demotions_lost > 0);
        assert_int_equal(stats.n_failed, 0);
        atomic_store(refused ? &saves_are_refused : &saves_fail, false);
        assert_int_equal(use(&f, 20, 20, NULL), MOE_OK);
        assert_true(stats_of(&f).demoted > 0);
        close_it(&f);
    }
}

/* The slot must not be overwritten while its old bytes may still be read: the step fails in time,
 * and goes on when the link does. */
static void hanging(void **state)
{
    (void)state;
    store_fixture f;
    moe_error error = {""};
    open_with(&f, 0.3, 40, TIMEOUT_MS);
    assert_int_equal(use(&f, 0, 10, NULL), MOE_OK);
    atomic_store(&saves_hang, true);
    uint64_t begin = moe_now_ns();
    assert_int_equal(use(&f, 10, 50, &error), MOE_ERR_DEVICE);
    assert_in_range((moe_now_ns() - begin) / MS, TIMEOUT_MS, FOR_EVER_MS);
    assert_non_null(strstr(error.message, "while an expert was copied from it"));
    assert_true(moe_expert_store_is_sane(f.engine->runner.experts));
    atomic_store(&saves_hang, false);
    int status = MOE_ERR_DEVICE;
    for (uint32_t i = 0; i < FOR_EVER_MS / 5 && status != MOE_OK; i++) {
        store_sleep_ms(5);
        status = use(&f, 100 + i, 1, &error);
    }
    assert_int_equal(status, MOE_OK);
    assert_int_equal(use(&f, 400, 20, NULL), MOE_OK);
    atomic_store(&saves_hang, true);
    assert_int_equal(use(&f, 500, 50, NULL), MOE_ERR_DEVICE);
    begin = moe_now_ns();
    moe_expert_store_close(&f.engine->runner.experts); /* does not wait for ever */
    assert_in_range((moe_now_ns() - begin) / MS, 0, FOR_EVER_MS);
    close_it(&f);
}

/* Reads fail while copies back are under way, and prefetches are cancelled. */
static void with_failing_reads(void **state)
{
    (void)state;
    store_fixture f;
    open_with(&f, 0.3, 40, 30000);
    uint32_t n_failed = 0;
    for (uint64_t pass = 0; pass < 60; pass++) {
        const uint32_t foretold[] = {0, 1, 2, 3};
        moe_expert_store_prefetch(f.engine->runner.experts, (uint32_t)pass % f.map->n_layer, pass,
                                  foretold, 4, 4);
        atomic_store(&f.fail_all, pass % 4 == 3);
        int status = use(&f, pass, 1, NULL);
        assert_true(status == MOE_OK || status == MOE_ERR_IO);
        n_failed += status == MOE_ERR_IO;
        assert_true(moe_expert_store_is_sane(f.engine->runner.experts));
    }
    assert_in_range(n_failed, 1, 59);
    assert_true(stats_of(&f).demoted > 0);
    close_it(&f);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: test_store_demotion MODEL.gguf\n");
        return 2;
    }
    model_path = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_tiers_hold_all), cmocka_unit_test(small_tiers),
        cmocka_unit_test(lost_copies),         cmocka_unit_test(hanging),
        cmocka_unit_test(with_failing_reads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
