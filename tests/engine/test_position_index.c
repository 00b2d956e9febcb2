/* SPDX-License-Identifier: MIT */
/* The choice of positions against a sort. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "runtime/pass/index_choice.h"

#define MOST 700u

static const float *sorted_scores;

/* Descending by score, then ascending by position; NaNs last. */
static int compare(const void *a, const void *b)
{
    uint32_t i = *(const uint32_t *)a;
    uint32_t j = *(const uint32_t *)b;
    float x = sorted_scores[i];
    float y = sorted_scores[j];
    int nans = isnan(x) - isnan(y);
    if (nans != 0 || x < y || x > y) {
        return nans != 0 ? nans : x < y ? 1 : -1;
    }
    return i < j ? -1 : 1;
}

static int ascending(const void *a, const void *b)
{
    uint32_t i = *(const uint32_t *)a;
    uint32_t j = *(const uint32_t *)b;
    return i < j ? -1 : i > j;
}

static float draw(uint32_t *state, uint32_t kind)
{
    static const float few[] = {0.0f, -0.0f, 1.0f, -1.0f, INFINITY, -INFINITY, NAN, 1e-40f};
    *state = *state * 1664525u + 1013904223u;
    uint32_t bits = *state >> 8;
    return kind == 0 ? (float)bits - 8388608.0f : few[bits % (kind == 1 ? 8 : 2)];
}

static void test_choice(void **unused)
{
    (void)unused;
    static float scores[MOST];
    static uint32_t order[MOST], scratch[MOST], chosen[MOST];
    uint32_t state = 1;
    for (uint32_t trial = 0; trial < 600; trial++) {
        uint32_t n = 1 + trial * 7 % MOST;
        uint32_t n_chosen = 1 + trial * 13 % n;
        for (uint32_t i = 0; i < n; i++) {
            scores[i] = draw(&state, trial % 3);
            order[i] = i;
        }
        sorted_scores = scores;
        qsort(order, n, sizeof *order, compare);
        qsort(order, n_chosen, sizeof *order, ascending);
        moe_choose_positions(scores, n, n_chosen, scratch, chosen);
        assert_memory_equal(chosen, order, n_chosen * sizeof *order);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_choice)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
