/* SPDX-License-Identifier: MIT */
/* A disk or a link that never answers: passes fail within the time-out with a line that says what
 * hangs, later ones fail at once until bytes arrive again, memory that may still be written to is
 * neither reused nor freed, and closing ends.
 * Usage: test_store_hang ORACLE-FOLDER */
#include "tests/offload/store_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/clock.h"
#include "runtime/base/error.h"

#define TIMEOUT_MS  400u /* a busy machine may keep the mover waiting for a good part of it */
#define PATIENCE_MS 900u
#define FOR_EVER_MS 120000u /* longer than other work keeps a test from the processors */
#define MS          1000000u
#define SIM_DEVICE  "sim:memory=64M,link=8GB/s,latency=2us"

static char model_path[1024];
static _Atomic bool link_hangs, link_fails;
static const moe_link_ops *true_link;

static void hurry(moe_expert_store_options *options, void *user)
{
    const moe_io_ops *inner = user;
    options->io_timeout_ns = TIMEOUT_MS * (uint64_t)MS;
    if (inner != NULL) {
        ((moe_io_fault *)options->io_context)->inner = inner;
    }
}

static void stick(store_fixture *f, uint32_t layer, uint32_t expert)
{
    f->chosen = (expert_name){layer, expert};
    atomic_store(&f->stick_chosen, true);
}

static void let_go(store_fixture *f)
{
    atomic_store(&f->stick_chosen, false);
    atomic_store(&f->fault.let_go, true);
}

/* Fails, not before what is allowed, and not never. */
static void expect_hang(store_fixture *f, uint32_t layer, uint64_t pass, uint32_t expert,
                        uint32_t least_ms, const char *expected)
{
    moe_error error = {""};
    uint64_t begin = moe_now_ns();
    moe_expert_store_stats before, after;
    moe_expert_store_get_stats(f->engine->runner.experts, &before);
    int status = store_request(f, layer, pass, &expert, 1, &error);
    moe_expert_store_get_stats(f->engine->runner.experts, &after);
    assert_int_equal(after.n_timeouts, before.n_timeouts + 1);
    assert_int_equal(status, atomic_load(&link_hangs) ? MOE_ERR_DEVICE : MOE_ERR_IO);
    uint64_t ms = (moe_now_ns() - begin) / MS;
    assert_in_range(ms, least_ms, FOR_EVER_MS);
    char name[64];
    snprintf(name, sizeof name, "layer %u, expert %u: ", layer, expert);
    if (strstr(error.message, name) == NULL || strstr(error.message, expected) == NULL) {
        fail_msg("does not say \"%s\" or \"%s\": %s", name, expected, error.message);
    }
}

/* Asks until it is there. */
static void expect_recovery(store_fixture *f, uint32_t layer, uint32_t expert)
{
    int status = MOE_ERR_IO;
    for (uint32_t i = 0; i < FOR_EVER_MS / 5 && status != MOE_OK; i++) {
        store_sleep_ms(5);
        status = store_request(f, layer, 50, &expert, 1, NULL);
    }
    assert_int_equal(status, MOE_OK);
}

/* Under pressure on the slots nothing is put where the stuck read will write. */
static void use_everything_else(store_fixture *f, uint32_t layer, uint32_t but)
{
    for (uint64_t pass = 1; pass < 4; pass++) {
        for (uint32_t e = 0; e < f->map->n_expert; e++) {
            if (e != but) {
                assert_int_equal(store_request(f, layer, pass, &e, 1, NULL), MOE_OK);
            }
        }
    }
}

static void hung_demand_on(const char *device, double share)
{
    store_fixture f;
    store_fixture_open_on(&f, device, model_path, share, hurry, NULL);
    stick(&f, 0, 2);
    expect_hang(&f, 0, 0, 2, TIMEOUT_MS, model_path);
    expect_hang(&f, 0, 0, 2, 0, "has not answered for 0.4 s");
    use_everything_else(&f, 0, 2);
    expect_hang(&f, 0, 5, 2, TIMEOUT_MS, "at offset ");
    let_go(&f);
    expect_recovery(&f, 0, 2);
    use_everything_else(&f, 0, 2);
    store_fixture_close(&f);
}

static void hung_demand(void **state)
{
    (void)state;
    hung_demand_on("cpu", 0.3);
    hung_demand_on(SIM_DEVICE, 0.3);
}

static void hung_prefetch(void **state)
{
    (void)state;
    const uint32_t foretold[] = {2, 3};
    store_fixture f;
    store_fixture_open(&f, model_path, 0.3, hurry, NULL);
    stick(&f, 0, 2);
    moe_expert_store_prefetch(f.engine->runner.experts, 0, 0, foretold, 2, 4);
    use_everything_else(&f, 0, 2);
    store_sleep_ms(2 * TIMEOUT_MS); /* nobody waits for it: no harm done */
    use_everything_else(&f, 1, UINT32_MAX);
    expect_hang(&f, 0, 5, 2, TIMEOUT_MS, model_path);
    let_go(&f);
    expect_recovery(&f, 0, 2);
    store_fixture_close(&f);
}

static void be_patient(moe_expert_store_options *options, void *user)
{
    hurry(options, user);
    options->io_timeout_ns = PATIENCE_MS * (uint64_t)MS;
}

/* Slower than the time-out as a whole, but with signs of life: not a hang. A sixth of the time-out
 * for the slowest read, so that a busy machine is not taken for one. */
static void slow_disk(void **state)
{
    (void)state;
    store_fixture f;
    store_fixture_open(&f, model_path, 0.5, be_patient, NULL);
    f.delay_per_mille = 1000;
    f.max_delay_ns = PATIENCE_MS * MS / 6;
    uint32_t experts[64];
    for (uint32_t e = 0; e < f.map->n_expert; e++) {
        experts[e] = e;
    }
    uint64_t begin = moe_now_ns();
    for (uint64_t pass = 0; moe_now_ns() - begin <= PATIENCE_MS * (uint64_t)MS; pass++) {
        assert_in_range(pass, 0, 100);
        assert_int_equal(store_request(&f, 0, pass, experts, f.map->n_expert, NULL), MOE_OK);
        assert_int_equal(store_request(&f, 1, pass, experts, f.map->n_expert, NULL), MOE_OK);
    }
    store_fixture_close(&f);
}

/* The read comes when the engine has long been closed: its memory must still be there. */
static void hung_while_closing(void **state)
{
    (void)state;
    static const char *const devices[] = {"cpu", SIM_DEVICE};
    for (int i = 0; i < 2; i++) {
        store_fixture f;
        store_fixture_open_on(&f, devices[i], model_path, 0.3, hurry, NULL);
        stick(&f, 0, 2);
        expect_hang(&f, 0, 0, 2, TIMEOUT_MS, model_path);
        uint8_t *target = atomic_load(&f.stuck_at);
        uint64_t begin = moe_now_ns();
        store_fixture_close(&f);
        assert_in_range((moe_now_ns() - begin) / MS, 0, FOR_EVER_MS);
        memset(target, 0xa5, 64);
        assert_int_equal(target[63], 0xa5);
    }
}

/* The engine that reads on the mover's own thread: the thread is left behind. */
static void hung_thread(void **state)
{
    (void)state;
    static store_fixture f; /* the thread uses it for longer than this function */
    store_fixture_open(&f, model_path, 0.3, hurry, (void *)&moe_io_sync_ops);
    atomic_store(&f.hold, true);
    expect_hang(&f, 0, 0, 2, TIMEOUT_MS, model_path);
    moe_error error = {""};
    uint32_t other = 3; /* behind it */
    assert_int_equal(store_request(&f, 0, 0, &other, 1, &error), MOE_ERR_IO);
    assert_non_null(strstr(error.message, "layer 0, expert 2: "));
    uint8_t *file = f.file;
    f.file = NULL;
    uint64_t begin = moe_now_ns();
    moe_expert_store_close(&f.engine->runner.experts);
    assert_in_range((moe_now_ns() - begin) / MS, TIMEOUT_MS, FOR_EVER_MS);
    uint64_t n_chosen = atomic_load(&f.n_chosen);
    atomic_store(&f.hold, false);
    for (uint32_t i = 0; i < FOR_EVER_MS && atomic_load(&f.n_chosen) == n_chosen; i++) {
        store_sleep_ms(1);
    }
    assert_true(atomic_load(&f.n_chosen) > n_chosen);
    store_sleep_ms(200); /* it reads, writes into memory that stayed, and ends */
    f.file = file;
    store_fixture_close(&f);
}

/* ---- Links ---- */

static int copy_state(moe_device *device, uint64_t ticket)
{
    if (atomic_load(&link_hangs)) {
        return MOE_COPY_UNDER_WAY;
    }
    int state = true_link->copy_state(device, ticket);
    return state == MOE_OK && atomic_load(&link_fails) ? MOE_ERR_DEVICE : state;
}

static int copy_wait(moe_device *device, uint64_t ticket, moe_error *err)
{
    int status = true_link->copy_wait(device, ticket, err);
    return status == MOE_OK && atomic_load(&link_fails)
               ? moe_fail(err, MOE_ERR_DEVICE, "the copy failed on purpose")
               : status;
}

static void break_link(moe_expert_store_options *options, void *user)
{
    static moe_link_ops link;
    true_link = options->device->link;
    link = *true_link;
    link.copy_state = copy_state;
    link.copy_wait = copy_wait;
    options->device->link = &link;
    hurry(options, user);
}

static void bad_links(void **state)
{
    (void)state;
    store_fixture f;
    uint32_t expert = 2;
    moe_error error = {""};
    store_fixture_open_on(&f, SIM_DEVICE, model_path, 0.3, break_link, NULL);
    atomic_store(&link_fails, true);
    assert_int_equal(store_request(&f, 0, 0, &expert, 1, &error), MOE_ERR_DEVICE);
    assert_non_null(strstr(error.message, "layer 0, expert 2: the copy failed on purpose"));
    atomic_store(&link_fails, false);
    assert_int_equal(store_request(&f, 0, 1, &expert, 1, NULL), MOE_OK);

    atomic_store(&link_hangs, true);
    expect_hang(&f, 0, 2, 3, TIMEOUT_MS, "the device has not answered for 0.4 s");
    expect_hang(&f, 0, 2, 4, 0, "the device has not answered");
    atomic_store(&link_hangs, false);
    expect_recovery(&f, 0, 3);
    use_everything_else(&f, 0, UINT32_MAX);

    atomic_store(&link_hangs, true);
    expect_hang(&f, 1, 9, 3, TIMEOUT_MS, "the device has not answered");
    uint64_t begin = moe_now_ns();
    moe_expert_store_close(&f.engine->runner.experts);
    /* It has just waited: not all of the time-out again. */
    assert_in_range((moe_now_ns() - begin) / MS, TIMEOUT_MS / 8, FOR_EVER_MS);
    f.engine->device->link = true_link;
    atomic_store(&link_hangs, false);
    store_fixture_close(&f);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: test_store_hang ORACLE-FOLDER\n");
        return 2;
    }
    alarm(120); /* a hang is a failure */
    snprintf(model_path, sizeof model_path, "%s/olmoe/model.gguf", argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hung_demand), cmocka_unit_test(hung_prefetch),
        cmocka_unit_test(slow_disk),   cmocka_unit_test(hung_while_closing),
        cmocka_unit_test(hung_thread), cmocka_unit_test(bad_links),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
