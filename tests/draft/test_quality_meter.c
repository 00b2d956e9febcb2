/* SPDX-License-Identifier: MIT */
/* The quality meter: KL against a naive computation, which positions it takes, when it trips. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "runtime/base/random.h"
#include "runtime/lossy/quality_meter.h"

#define VOCAB 50

static void softmax(const float *x, double *p)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < VOCAB; i++) {
        p[i] = exp((double)x[i]);
        sum += p[i];
    }
    for (uint32_t i = 0; i < VOCAB; i++) {
        p[i] /= sum;
    }
}

static void test_kl(void **state)
{
    (void)state;
    moe_random random;
    moe_random_seed(&random, 31);
    moe_quality_meter meter;
    moe_quality_meter_init(&meter, 1.0, 0.0, 1);
    double sum = 0.0;
    double most = 0.0;
    uint64_t agreed = 0;
    for (uint32_t n = 0; n < 200; n++) {
        float exact[VOCAB], lossy[VOCAB];
        double p[VOCAB], q[VOCAB];
        double kl = 0.0;
        uint32_t best[2] = {0, 0};
        for (uint32_t i = 0; i < VOCAB; i++) {
            exact[i] = (float)(10.0 * moe_random_uniform(&random) - 5.0);
            lossy[i] = exact[i] + (float)moe_random_uniform(&random);
            best[0] = exact[i] > exact[best[0]] ? i : best[0];
            best[1] = lossy[i] > lossy[best[1]] ? i : best[1];
        }
        softmax(exact, p);
        softmax(lossy, q);
        for (uint32_t i = 0; i < VOCAB; i++) {
            kl += p[i] * log(p[i] / q[i]);
        }
        sum += kl;
        most = kl > most ? kl : most;
        agreed += best[0] == best[1];
        moe_quality_meter_add(&meter, exact, lossy, VOCAB);
    }
    assert_true(fabs(meter.kl_sum - sum) < 1e-9 && fabs(meter.kl_max - most) < 1e-11);
    assert_true(fabs(moe_quality_meter_mean_kl(&meter) - sum / 200.0) < 1e-11);
    assert_true(meter.n_sampled == 200 && meter.n_agreed == agreed && agreed < 200);
    assert_false(meter.exceeded);
}

/* Large logits do not overflow, what is ruled out counts as such, and no number is no agreement. */
static void test_extremes(void **state)
{
    (void)state;
    moe_quality_meter meter;
    moe_quality_meter_init(&meter, 1.0, 0.0, 1);
    assert_true(isnan(moe_quality_meter_mean_kl(&meter))); /* nothing was measured */
    const float high[3] = {1e30f, 0.0f, -1e30f};
    moe_quality_meter_add(&meter, high, high, 3);
    const float never[3] = {1.0f, 1.0f, -INFINITY};
    moe_quality_meter_add(&meter, never, never, 3);
    moe_quality_meter_add(&meter, high, high, 0);
    assert_true(meter.kl_sum == 0.0 && meter.n_sampled == 2 && meter.n_agreed == 2);
    const float one[3] = {1.0f, 1.0f, 1.0f};
    const float broken[3] = {1.0f, NAN, 1.0f};
    moe_quality_meter_add(&meter, one, broken, 3);
    assert_true(isinf(meter.kl_max) && meter.kl_max > 0.0);
    moe_quality_meter_init(&meter, 1.0, 0.0, 1);
    moe_quality_meter_add(&meter, one, never, 3);
    assert_true(isinf(meter.kl_sum));
}

static void test_positions(void **state)
{
    (void)state;
    const double shares[4] = {0.02, 0.25, 0.9, 1.0};
    for (uint32_t s = 0; s < 4; s++) {
        moe_quality_meter a, b, other;
        moe_quality_meter_init(&a, shares[s], 0.0, 7);
        moe_quality_meter_init(&b, shares[s], 0.0, 7);
        moe_quality_meter_init(&other, shares[s], 0.0, 8000000);
        double n = 0.0;
        uint32_t differ = 0;
        for (uint32_t i = 0; i < 20000; i++) {
            bool taken = moe_quality_meter_next(&a);
            assert_true(taken == moe_quality_meter_next(&b));
            const float x[1] = {0.0f}; /* what is measured does not matter */
            moe_quality_meter_add(&b, x, x, 1);
            differ += taken != moe_quality_meter_next(&other);
            n += taken;
        }
        /* Within 5 deviations of the binomial. */
        double deviation = sqrt(20000.0 * shares[s] * (1.0 - shares[s]));
        assert_true(fabs(n - 20000.0 * shares[s]) <= 5.0 * deviation);
        assert_true(a.n_positions == 20000);
        assert_true(shares[s] == 1.0 ? differ == 0 : differ > 0);
    }
}

static void test_limit(void **state)
{
    (void)state;
    const float exact[2] = {3.0f, 0.0f};
    const float lossy[2] = {0.0f, 3.0f};
    moe_quality_meter meter;
    moe_quality_meter_init(&meter, 1.0, 0.5, 1);
    for (uint32_t i = 1; i <= 2 * MOE_QUALITY_MIN_SAMPLES; i++) {
        moe_quality_meter_add(&meter, exact, lossy, 2);
        /* A KL of 2.7 each: two are more than 8 of the limit. */
        assert_true(meter.exceeded == (i >= 2));
    }
    for (uint32_t i = 0; i < 1000; i++) {
        moe_quality_meter_add(&meter, exact, exact, 2);
    }
    assert_true(moe_quality_meter_mean_kl(&meter) < 0.5 && meter.exceeded);
    moe_quality_meter_init(&meter, 1.0, 2.5, 1);
    for (uint32_t i = 1; i <= 2 * MOE_QUALITY_MIN_SAMPLES; i++) {
        moe_quality_meter_add(&meter, exact, lossy, 2);
        assert_true(meter.exceeded == (i >= MOE_QUALITY_MIN_SAMPLES));
    }
    moe_quality_meter_init(&meter, 1.0, 1e6, 1);
    for (uint32_t i = 0; i < 100; i++) {
        moe_quality_meter_add(&meter, exact, lossy, 2);
    }
    assert_false(meter.exceeded);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kl),
        cmocka_unit_test(test_extremes),
        cmocka_unit_test(test_positions),
        cmocka_unit_test(test_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
