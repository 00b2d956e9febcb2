/* SPDX-License-Identifier: MIT */
/* Dividing experts among workers: by how often each is asked for, by the workers' speed, their
 * memory and their files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/workers/worker_balance.h"

enum { N_LAYER = 4, N_EXPERT = 32, N = N_LAYER * N_EXPERT, N_BYTES = N / 8 + 1 };

typedef struct division {
    float heat[N];
    uint8_t has[3][N_BYTES], able[3][N_BYTES], bits[3][N_BYTES];
    moe_worker_of_balance workers[3];
} division;

/* The n-th expert of a layer is asked for an n-th as often as its first one. Each worker's file has
 * all of them, and its memory has room for them. */
static void begin(division *d)
{
    memset(d, 0, sizeof *d);
    memset(d->able, 0xff, sizeof d->able);
    for (uint32_t key = 0; key < N; key++) {
        d->heat[key] = 1000.0f / (float)(1 + key % N_EXPERT);
    }
    for (uint32_t w = 0; w < 3; w++) {
        d->workers[w] =
            (moe_worker_of_balance){.has = d->has[w], .able = d->able[w], .room = N, .cost = 1.0};
    }
}

static void divide(division *d, uint32_t n_workers)
{
    uint8_t *const bits[] = {d->bits[0], d->bits[1], d->bits[2]};
    assert_int_equal(
        moe_worker_balance(d->heat, N_LAYER, N_EXPERT, d->workers, n_workers, bits, NULL), 0);
}

static bool has(const division *d, uint32_t worker, uint32_t key)
{
    return (d->bits[worker][key / 8] >> key % 8 & 1) != 0;
}

static uint32_t count(const division *d, uint32_t worker)
{
    uint32_t n = 0;
    for (uint32_t key = 0; key < N; key++) {
        n += has(d, worker, key);
    }
    return n;
}

/* What is asked of a worker in a layer, if it alone has what it has. */
static double heat_of(const division *d, uint32_t worker, uint32_t layer)
{
    double heat = 0.0;
    for (uint32_t key = layer * N_EXPERT; key < (layer + 1) * N_EXPERT; key++) {
        heat += has(d, worker, key) ? (double)d->heat[key] : 0.0;
    }
    return heat;
}

static void each_expert_is_somewhere(void **state)
{
    (void)state;
    division d;
    begin(&d);
    d.workers[0].room = d.workers[1].room = N / 2;
    divide(&d, 2);
    for (uint32_t key = 0; key < N; key++) {
        assert_int_equal(has(&d, 0, key) + has(&d, 1, key), 1);
    }
    for (uint32_t l = 0; l < N_LAYER; l++) { /* the hottest one is a quarter of its layer */
        assert_true(heat_of(&d, 0, l) < 1.4 * heat_of(&d, 1, l));
        assert_true(heat_of(&d, 1, l) < 1.4 * heat_of(&d, 0, l));
    }
}

static void a_slow_worker_gets_less(void **state)
{
    (void)state;
    division d;
    begin(&d);
    d.workers[0].room = 3 * N / 4;
    d.workers[1].room = N / 4; /* the two have just enough, and so no expert twice */
    d.workers[1].cost = 3.0;
    divide(&d, 2);
    for (uint32_t l = 0; l < N_LAYER; l++) {
        assert_true(heat_of(&d, 1, l) < 0.5 * heat_of(&d, 0, l));
        assert_true(heat_of(&d, 1, l) > 0.0);
    }
}

static void the_hottest_come_twice(void **state)
{
    (void)state;
    division d;
    begin(&d);
    for (uint32_t w = 0; w < 3; w++) {
        d.workers[w].room = N / 2; /* 1.5 times as much as there is */
    }
    divide(&d, 3);
    uint32_t n_twice = 0;
    for (uint32_t key = 0; key < N; key++) {
        const int n = has(&d, 0, key) + has(&d, 1, key) + has(&d, 2, key);
        assert_true(n >= 1);
        assert_true(n >= 2 || key % N_EXPERT >= N_EXPERT / 4);
        n_twice += n >= 2;
    }
    assert_true(n_twice >= N / 4 && n_twice <= N / 2);
}

static void memory_and_files_are_kept_to(void **state)
{
    (void)state;
    division d;
    begin(&d);
    d.workers[0].room = 10;
    memset(d.able[1], 0, sizeof d.able[1]);
    d.able[1][0] = 0x0f; /* its file has four experts */
    divide(&d, 2);
    assert_int_equal(count(&d, 0), 10);
    assert_true(count(&d, 1) <= 4);
    for (uint32_t key = 4; key < N; key++) {
        assert_false(has(&d, 1, key));
    }
    for (uint32_t l = 1; l < N_LAYER; l++) {
        assert_true(has(&d, 0, l * N_EXPERT)); /* the hottest are what it has room for */
    }
}

static void what_is_well_divided_stays(void **state)
{
    (void)state;
    division d;
    begin(&d);
    for (uint32_t w = 0; w < 3; w++) {
        d.workers[w].room = N / 3 + 1;
    }
    divide(&d, 3);
    memcpy(d.has, d.bits, sizeof d.has);
    for (uint32_t key = 0; key < N; key++) {
        d.heat[key] *= 1.0f + 0.02f * (float)(key * 7 % 5);
    }
    divide(&d, 3);
    uint32_t n_moved = 0;
    for (uint32_t key = 0; key < N; key++) {
        for (uint32_t w = 0; w < 3; w++) {
            n_moved += has(&d, w, key) && (d.has[w][key / 8] >> key % 8 & 1) == 0;
        }
    }
    assert_true(n_moved < N / 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_expert_is_somewhere),
        cmocka_unit_test(a_slow_worker_gets_less),
        cmocka_unit_test(the_hottest_come_twice),
        cmocka_unit_test(memory_and_files_are_kept_to),
        cmocka_unit_test(what_is_well_divided_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
