/* SPDX-License-Identifier: MIT */
/* The split of a layer's missing experts between host and link, on stated times. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "runtime/place/place_split.h"

#define N 8u

static const uint32_t ones[N] = {1, 1, 1, 1, 1, 1, 1, 1};

typedef struct places {
    moe_place_split split;
    moe_place_times host, device;
} places;

/* Times of one expert in us; the link takes 1 us a kB. */
static places measured(uint64_t host_us, uint64_t device_us)
{
    places p = {0};
    moe_place_split_init(&p.split, 1000000000u, 0);
    moe_place_note(&p.host, 1, 1, host_us * 1000);
    moe_place_note(&p.device, 1, 1, device_us * 1000);
    p.split.n_decisions = 1; /* not a decision that tries something */
    return p;
}

static uint32_t choose_of(places *p, const moe_split_work *work)
{
    return moe_place_split_choose(&p->split, &p->host, &p->device, work);
}

static uint32_t choose(places *p, uint32_t n, uint64_t link_us)
{
    moe_split_work work = {.n_rows = ones, .n = n, .expert_bytes = link_us * 1000};
    return choose_of(p, &work);
}

static void one_side_far_slower(void **state)
{
    (void)state;
    places p = measured(10, 1);
    assert_int_equal(choose(&p, N, 10000), N);
    p = measured(10000, 1);
    assert_int_equal(choose(&p, N, 10), 0);
    assert_int_equal(choose(&p, 0, 10), 0);
}

/* Both end at about the same time: host 20 us an expert against 60 on the link is 3 to 1. */
static void balanced(void **state)
{
    (void)state;
    places p = measured(20, 1);
    assert_int_equal(choose(&p, N, 60), 6);
    p = measured(60, 1);
    assert_int_equal(choose(&p, N, 60), 4);
    p = measured(60, 1);
    assert_int_equal(choose(&p, N, 20), 2);
}

/* What must come over the link anyway leaves less room on it. */
static void link_is_taken(void **state)
{
    (void)state;
    places p = measured(60, 1);
    moe_split_work work = {.n_rows = ones, .n = N, .expert_bytes = 60000, .n_disk = 8};
    assert_int_equal(choose_of(&p, &work), N);
}

/* A device that is busy with experts it has hides transfers. */
static void device_is_busy(void **state)
{
    (void)state;
    places p = measured(60, 50);
    moe_split_work work = {.n_rows = ones, .n = 2, .expert_bytes = 20000};
    work.n_resident = work.n_resident_rows = 8;
    uint32_t busy = choose_of(&p, &work);
    assert_int_equal(busy, 2); /* 8 x 50 us go on meanwhile, and moving adds to them */
    work.n_resident = work.n_resident_rows = 0;
    assert_int_equal(choose_of(&p, &work), 1);
}

static void many_rows(void **state)
{
    (void)state;
    static const uint32_t rows[] = {1, 64};
    places p = measured(50, 1);
    moe_split_work work = {.n_rows = rows, .n = 2, .expert_bytes = 100000};
    /* 64 rows on the host would take up to 64 times as long: only the other one stays there. */
    assert_int_equal(choose_of(&p, &work), 1);
    moe_place_note(&p.host, 1, 64, 60000); /* they were measured to take 60 us */
    assert_int_equal(choose_of(&p, &work), 2);
}

/* Nothing is known of the host at first: one expert tells. */
static void first_decision(void **state)
{
    (void)state;
    places p = {0};
    moe_place_split_init(&p.split, 1000000000u, 10000);
    assert_int_equal(choose(&p, N, 60), 1);
    assert_int_equal(p.split.n_host_forced, 1);
    assert_int_equal(choose(&p, N, 60), 0);
    moe_place_note(&p.host, 1, 1, 1000);
    assert_int_equal(choose(&p, N, 60), N);
}

/* The side that is left idle is tried now and then, so that a change is noticed. */
static void goes_on_measuring(void **state)
{
    (void)state;
    places slow_host = measured(10000, 1);
    places slow_link = measured(10, 1);
    uint32_t n_host = 0;
    uint32_t n_moved = 0;
    for (int i = 0; i < 640; i++) {
        n_host += choose(&slow_host, N, 10);
        n_moved += N - choose(&slow_link, N, 10000);
    }
    assert_int_equal(n_host, 10);
    assert_int_equal(n_moved, 10);
    for (int i = 0; i < 100; i++) {
        moe_place_note(&slow_host.host, 1, 1, 1000);
    }
    assert_true(choose(&slow_host, N, 10) > 0);
    moe_place_split_note_link(&slow_link.split, 0.000001);
    assert_int_equal(choose(&slow_link, N, 10000), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_side_far_slower), cmocka_unit_test(balanced),
        cmocka_unit_test(link_is_taken),       cmocka_unit_test(device_is_busy),
        cmocka_unit_test(many_rows),           cmocka_unit_test(first_decision),
        cmocka_unit_test(goes_on_measuring),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
