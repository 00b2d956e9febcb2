/* SPDX-License-Identifier: MIT */
/* Pages that threads bring in ahead of a filler: they come, what the filler wrote stays, and small
 * or unmapped memory is left alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/host/pages_ahead.h"
#include "tests/pages_present.h"

#define BYTES ((size_t)64 << 20)
#define FILL  ((size_t)24 << 20)

static uint8_t *map(void)
{
    uint8_t *memory = map_pages(BYTES);
    assert_non_null(memory);
    return memory;
}

static moe_pages_ahead *start(uint8_t *memory, size_t bytes, size_t most_ahead, uint32_t n)
{
    const moe_pages_region region = {.memory = memory, .bytes = bytes};
    return moe_pages_ahead_start(&region, 1, most_ahead, n);
}

/* The threads bring in all that is beyond the filler, without its doing. */
static void test_pages_come(void **state)
{
    (void)state;
    uint8_t *memory = map();
    if (!pages_can_come(memory)) {
        munmap(memory, BYTES);
        skip();
    }
    moe_pages_ahead *ahead = start(memory, BYTES, SIZE_MAX, 2);
    assert_non_null(ahead);
    assert_true(pages_come(memory, BYTES / 2, BYTES));
    moe_pages_ahead_stop(&ahead);
    assert_null(ahead);
    munmap(memory, BYTES);
}

/* In each of two regions the threads stay so far ahead of its filler, and no further. */
static void test_most_ahead(void **state)
{
    (void)state;
    const size_t half = BYTES / 2, most = (size_t)12 << 20, step = (size_t)4 << 20;
    uint8_t *memory = map();
    if (!pages_can_come(memory)) {
        munmap(memory, BYTES);
        skip();
    }
    /* Steps begin at multiples of 2 MiB: a mapping may not. */
    const size_t huge = (size_t)2 << 20, skipped = (huge - (uintptr_t)memory % huge) % huge;
    const moe_pages_region regions[] = {{memory, half}, {memory + half, half}};
    moe_pages_ahead *ahead = moe_pages_ahead_start(regions, 2, most, 2);
    assert_non_null(ahead);
    assert_true(pages_come(memory, skipped + 2 * step, most));
    assert_true(pages_come(memory, half + skipped + 2 * step, half + most));
    assert_int_equal(pages_present(memory, skipped + most + step, half), 0);
    assert_int_equal(pages_present(memory, half + skipped + most + step, BYTES), 0);
    /* The next step but one of the filler's. */
    moe_pages_ahead_filled(ahead, 1, skipped + 2 * step);
    assert_true(pages_come(memory, half + skipped + 4 * step, half + 5 * step));
    assert_int_equal(pages_present(memory, half + skipped + 5 * step, BYTES), 0);
    assert_int_equal(pages_present(memory, skipped + most + step, half), 0);
    /* A part that comes out of turn, and no more than that. */
    moe_pages_ahead_hurry(ahead, 0, half - 3 * step, 2 * step);
    assert_true(pages_come(memory, half - 3 * step, half - step));
    assert_int_equal(pages_present(memory, half - step, half), 0);
    assert_int_equal(pages_present(memory, skipped + most + step, half - 3 * step), 0);
    moe_pages_ahead_stop(&ahead);
    munmap(memory, BYTES);
}

/* What is written beside the threads is there at the end. */
static void test_bytes_stay(void **state)
{
    (void)state;
    uint8_t *memory = map();
    moe_pages_ahead *ahead = start(memory, BYTES, SIZE_MAX, 4);
    for (size_t at = 0; at < FILL; at += PAGE) {
        memset(memory + at, (int)(1 + at / PAGE % 251), PAGE);
        moe_pages_ahead_filled(ahead, 0, at + PAGE);
    }
    moe_pages_ahead_stop(&ahead);
    for (size_t at = 0; at < BYTES; at += 997) {
        assert_int_equal(memory[at], at < FILL ? 1 + at / PAGE % 251 : 0);
    }
    munmap(memory, BYTES);
}

static void test_nothing_to_do(void **state)
{
    (void)state;
    uint8_t small[PAGE];
    assert_null(start(small, sizeof small, SIZE_MAX, 2));
    uint8_t *memory = map();
    assert_null(start(memory, BYTES, SIZE_MAX, 0));
    munmap(memory, BYTES);
    moe_pages_ahead *none = NULL;
    moe_pages_ahead_filled(none, 0, 1);
    moe_pages_ahead_hurry(none, 0, 0, PAGE);
    moe_pages_ahead_stop(&none);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pages_come),
        cmocka_unit_test(test_most_ahead),
        cmocka_unit_test(test_bytes_stay),
        cmocka_unit_test(test_nothing_to_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
