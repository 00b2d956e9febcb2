/* SPDX-License-Identifier: MIT */
/* beta from a budget of transfers: by hand, and against a search over all thresholds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "runtime/base/random.h"
#include "runtime/lossy/transfer_beta.h"

/* Two layers of 8 requests: one misses 4 (class 16), one 2 (class 8), an expert has 10 bytes. */
static void test_by_hand(void **state)
{
    (void)state;
    const uint64_t budgets[4] = {39, 40, 59, 60};
    const float betas[4] = {17.0f / 32, 9.0f / 32, 9.0f / 32, 0.0f};
    for (uint32_t i = 0; i < 4; i++) {
        moe_transfer_beta t;
        moe_transfer_beta_init(&t, budgets[i]);
        assert_true(moe_transfer_beta_get(&t) == 1.0f);
        for (uint32_t pass = 0; pass < 100; pass++) {
            moe_transfer_beta_note(&t, 0, 4, 8, 10);
            assert_true(moe_transfer_beta_get(&t) == (pass == 0 ? 1.0f : betas[i]));
            moe_transfer_beta_note(&t, 5, 2, 8, 10);
        }
    }
    moe_transfer_beta t;
    moe_transfer_beta_init(&t, 79);
    for (uint32_t pass = 0; pass < 3; pass++) {
        moe_transfer_beta_note(&t, 0, 8, 8, 10); /* all missing: the last class */
    }
    assert_true(moe_transfer_beta_get(&t) == 1.0f);
}

#define LAYERS 6
#define PASSES 20

/* The least n / 32 for which layers that miss as much or more cost at most the budget, on average
 * over the passes that have ended. */
static float naive_beta(const uint32_t (*missing)[LAYERS], const uint32_t (*requested)[LAYERS],
                        uint32_t n_passes, uint64_t budget)
{
    for (uint32_t n = 0; n < 32; n++) {
        uint64_t bytes = 0;
        for (uint32_t i = 0; i < n_passes * LAYERS; i++) {
            uint32_t m = missing[i / LAYERS][i % LAYERS];
            bytes += m * 32 >= n * requested[i / LAYERS][i % LAYERS] ? 100 * (uint64_t)m : 0;
        }
        if (bytes <= budget * n_passes) {
            return (float)n / 32;
        }
    }
    return 1.0f;
}

static void test_random_passes(void **state)
{
    (void)state;
    moe_random random;
    moe_random_seed(&random, 7);
    uint32_t n_inside = 0;
    for (uint32_t i = 0; i < 500; i++) {
        uint32_t missing[PASSES][LAYERS];
        uint32_t requested[PASSES][LAYERS];
        uint64_t budget = 1 + moe_random_next(&random) % 4000;
        moe_transfer_beta t;
        moe_transfer_beta_init(&t, budget);
        for (uint32_t p = 0; p < PASSES; p++) {
            for (uint32_t l = 0; l < LAYERS; l++) {
                requested[p][l] = 1 + (uint32_t)(moe_random_next(&random) % 16);
                missing[p][l] = (uint32_t)(moe_random_next(&random) % (requested[p][l] + 1));
                moe_transfer_beta_note(&t, l, missing[p][l], requested[p][l], 100);
            }
            float want = p == 0 ? 1.0f : naive_beta(missing, requested, p, budget);
            /* A mean that is updated rounds: a budget that is met exactly may count as exceeded. */
            float less = p == 0 ? 1.0f : naive_beta(missing, requested, p, budget - 1);
            float got = moe_transfer_beta_get(&t);
            assert_true(got == want || got == less);
            n_inside += got > 0.0f && got < 1.0f;
        }
    }
    assert_true(n_inside > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_random_passes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
