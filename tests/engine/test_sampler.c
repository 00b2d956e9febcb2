/* SPDX-License-Identifier: MIT */
/* The sampler on logits made up here: distributions against softmax, filters against their
 * definitions, logits that are not numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>

#include "runtime/sampling/sampler.h"

#define N 64u

static moe_sampler make(float temperature, uint64_t seed)
{
    moe_sampling settings;
    moe_sampling_init(&settings);
    settings.temperature = temperature;
    settings.top_k = 0;
    settings.top_p = 1.0f;
    settings.min_p = 0.0f;
    settings.seed = seed;
    moe_sampler sampler;
    assert_int_equal(moe_sampler_init(&sampler, &settings, N, NULL), MOE_OK);
    return sampler;
}

/* Uneven, in no order, no two alike. */
static void make_logits(float *logits)
{
    for (uint32_t i = 0; i < N; i++) {
        logits[i] = 2.5f * sinf((float)(i * i % 67) * 0.71f) + 0.01f * (float)i;
    }
}

static void softmax(const float *logits, double temperature, double *p)
{
    double sum = 0.0;
    double top = -INFINITY;
    for (uint32_t i = 0; i < N; i++) {
        top = fmax(top, (double)logits[i]);
    }
    for (uint32_t i = 0; i < N; i++) {
        p[i] = exp(((double)logits[i] - top) / temperature);
        sum += p[i];
    }
    for (uint32_t i = 0; i < N; i++) {
        p[i] /= sum;
    }
}

/* Pearson's statistic of n draws against p; tokens of p = 0 must not be drawn. *freedom: cells - 1.
 */
static double chi_squared(moe_sampler *sampler, const float *logits, const double *p, uint32_t n,
                          double *freedom)
{
    uint32_t counts[N] = {0};
    for (uint32_t i = 0; i < n; i++) {
        int32_t token = moe_sampler_next(sampler, logits, NULL, 0);
        assert_true(token >= 0 && token < (int32_t)N);
        counts[token]++;
    }
    double sum = 0.0;
    *freedom = -1.0;
    for (uint32_t i = 0; i < N; i++) {
        double expected = p[i] * n;
        if (p[i] == 0.0) {
            assert_int_equal(counts[i], 0);
        } else {
            sum += (counts[i] - expected) * (counts[i] - expected) / expected;
            *freedom += 1.0;
        }
    }
    return sum;
}

/* Mean freedom, variance 2 freedom; seeds are fixed, so this passes always or never. */
static void assert_fits(double statistic, double freedom)
{
    double limit = freedom + 4.0 * sqrt(2.0 * freedom) + 6.0;
    print_message("chi2 %.1f, %.0f degrees of freedom, limit %.1f\n", statistic, freedom, limit);
    assert_true(statistic < limit);
}

static void follows_softmax(void **state)
{
    (void)state;
    float logits[N];
    double p[N], freedom;
    make_logits(logits);
    const float temperatures[] = {1.0f, 0.5f, 1.7f};
    for (uint32_t t = 0; t < 3; t++) {
        for (uint64_t seed = 0; seed < 2; seed++) {
            moe_sampler sampler = make(temperatures[t], seed);
            softmax(logits, (double)temperatures[t], p);
            double statistic = chi_squared(&sampler, logits, p, 100000, &freedom);
            assert_fits(statistic, freedom);
            moe_sampler_free(&sampler);
        }
    }
    /* The test can fail: the distribution of another temperature does not fit. */
    moe_sampler sampler = make(1.06f, 1);
    softmax(logits, 1.0, p);
    double statistic = chi_squared(&sampler, logits, p, 100000, &freedom);
    assert_true(statistic > freedom + 4.0 * sqrt(2.0 * freedom) + 6.0);
    moe_sampler_free(&sampler);
}

/* Order of tokens by logit, and the definition of every filter, naively. */
static void filtered_softmax(const float *logits, const moe_sampling *s, double *p)
{
    double all[N];
    uint32_t order[N];
    softmax(logits, 1.0, all);
    for (uint32_t i = 0; i < N; i++) {
        uint32_t at = i;
        for (; at > 0 && logits[order[at - 1]] < logits[i]; at--) {
            order[at] = order[at - 1];
        }
        order[at] = i;
    }
    uint32_t n = s->top_k == 0 ? N : s->top_k;
    double held = 0.0, top_k_sum = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        top_k_sum += all[order[i]];
    }
    uint32_t kept = 0;
    while (kept < n && (kept == 0 || s->top_p == 1.0f || held < (double)s->top_p * top_k_sum)) {
        held += all[order[kept++]];
    }
    while (kept > 1 && all[order[kept - 1]] < (double)s->min_p * all[order[0]]) {
        kept--;
    }
    double sum = 0.0;
    for (uint32_t i = 0; i < N; i++) {
        p[i] = 0.0;
    }
    for (uint32_t i = 0; i < kept; i++) {
        p[order[i]] = exp((double)logits[order[i]] / (double)s->temperature);
        sum += p[order[i]];
    }
    for (uint32_t i = 0; i < N; i++) {
        p[i] /= sum;
    }
}

static void filters_keep_exactly_their_set(void **state)
{
    (void)state;
    const struct {
        float temperature;
        uint32_t top_k;
        float top_p, min_p;
    } cases[] = {
        {1.0f, 5, 1.0f, 0.0f},   {1.0f, 1, 1.0f, 0.0f},    {1.0f, 64, 1.0f, 0.0f},
        {1.0f, 0, 0.5f, 0.0f},   {1.0f, 0, 0.95f, 0.0f},   {1.0f, 0, 0.001f, 0.0f},
        {1.0f, 0, 1.0f, 0.3f},   {1.0f, 0, 1.0f, 0.999f},  {1.5f, 20, 0.8f, 0.05f},
        {0.7f, 40, 0.9f, 0.05f}, {2.0f, 10, 0.99f, 0.25f}, {1.0f, 1000, 1.0f, 0.0f},
    };
    float logits[N];
    make_logits(logits);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        moe_sampler sampler = make(cases[i].temperature, i);
        sampler.settings.top_k = cases[i].top_k;
        sampler.settings.top_p = cases[i].top_p;
        sampler.settings.min_p = cases[i].min_p;
        moe_sampling settings = sampler.settings;
        settings.top_k = settings.top_k > N ? N : settings.top_k;
        double p[N], freedom;
        filtered_softmax(logits, &settings, p);
        double statistic = chi_squared(&sampler, logits, p, 30000, &freedom);
        assert_fits(statistic, freedom);
        moe_sampler_free(&sampler);
    }
}

static void greedy_takes_the_lowest_of_equals(void **state)
{
    (void)state;
    float logits[N];
    make_logits(logits);
    logits[41] = logits[17] = logits[50] = 9.0f;
    moe_sampler sampler = make(0.0f, 0);
    assert_int_equal(moe_sampler_next(&sampler, logits, NULL, 0), 17);
    /* Those with a penalty go another way. */
    int32_t recent = 17;
    sampler.settings.repeat_penalty = 0.5f;
    assert_int_equal(moe_sampler_next(&sampler, logits, NULL, 0), 17);
    sampler.settings.repeat_penalty = 2.0f;
    assert_int_equal(moe_sampler_next(&sampler, logits, &recent, 1), 41);
    sampler.settings.repeat_penalty = 1.0f;
    sampler.settings.temperature = 1.0f;
    sampler.settings.top_k = 1;
    assert_int_equal(moe_sampler_next(&sampler, logits, NULL, 0), 17);
    moe_sampler_free(&sampler);
}

/* Each token of the window once, however often it stands there; positive logits are divided,
 * negative ones multiplied; what lies before the window is free. */
static void repetition_is_penalised(void **state)
{
    (void)state;
    float logits[N], penalised[N];
    make_logits(logits);
    for (uint32_t i = 0; i < N; i++) {
        logits[i] += i % 2 == 0 ? 3.0f : -3.0f;
    }
    int32_t recent[40];
    for (int i = 0; i < 40; i++) {
        recent[i] = i < 30 ? i : (i * 5) % 7 + 30;
    }
    moe_sampler sampler = make(1.0f, 3);
    sampler.settings.repeat_penalty = 1.8f;
    sampler.settings.repeat_last = 12;
    memcpy(penalised, logits, sizeof logits);
    bool seen[N] = {false};
    for (int i = 28; i < 40; i++) {
        float *x = &penalised[recent[i]];
        *x = seen[recent[i]] ? *x : *x > 0.0f ? *x / 1.8f : *x * 1.8f;
        seen[recent[i]] = true;
    }
    double p[N];
    softmax(penalised, 1.0, p);
    uint32_t counts[N] = {0};
    const uint32_t n = 100000;
    for (uint32_t i = 0; i < n; i++) {
        counts[moe_sampler_next(&sampler, logits, recent, 40)]++;
    }
    double statistic = 0.0;
    for (uint32_t i = 0; i < N; i++) {
        statistic += (counts[i] - p[i] * n) * (counts[i] - p[i] * n) / (p[i] * n);
    }
    assert_fits(statistic, N - 1);
    sampler.settings.temperature = 0.0f;
    int32_t greedy = moe_sampler_next(&sampler, logits, recent, 40);
    for (uint32_t i = 0; i < N; i++) {
        assert_true(penalised[i] <= penalised[greedy]);
    }
    moe_sampler_free(&sampler);
}

static void seeds_reproduce(void **state)
{
    (void)state;
    float logits[N];
    make_logits(logits);
    moe_sampler a = make(1.0f, 11), b = make(1.0f, 11), c = make(1.0f, 12);
    int n_equal = 0;
    for (int i = 0; i < 1000; i++) {
        int32_t token = moe_sampler_next(&a, logits, NULL, 0);
        assert_int_equal(token, moe_sampler_next(&b, logits, NULL, 0));
        n_equal += token == moe_sampler_next(&c, logits, NULL, 0);
    }
    assert_true(n_equal < 300);
    moe_sampler_free(&a);
    moe_sampler_free(&b);
    moe_sampler_free(&c);
}

/* Whatever the logits are, an id of the vocabulary comes back, and NaN is never chosen while there
 * is a number. */
static void logits_that_are_no_numbers(void **state)
{
    (void)state;
    const float odd[] = {NAN, INFINITY, -INFINITY, 3.4e38f, -3.4e38f, 0.0f, -NAN, 1e-45f};
    uint32_t random = 1;
    for (int round = 0; round < 20000; round++) {
        float logits[N];
        bool any_number = false;
        int32_t recent[8];
        for (uint32_t i = 0; i < N; i++) {
            random = random * 1664525u + 1013904223u;
            uint32_t kinds = round % 9 == 0 ? 1 : 8;
            logits[i] = odd[(random >> 16) % kinds];
            any_number |= logits[i] > -INFINITY;
            recent[i % 8] = (int32_t)((random >> 10) % N);
        }
        moe_sampler sampler = make(round % 3 == 0 ? 0.0f : 1.0f, (uint64_t)round);
        sampler.settings.top_p = round % 2 == 0 ? 1.0f : 0.9f;
        sampler.settings.min_p = round % 4 == 0 ? 0.1f : 0.0f;
        sampler.settings.top_k = round % 5 == 0 ? 7 : 0;
        sampler.settings.repeat_penalty = round % 7 == 0 ? 1.3f : 1.0f;
        int32_t token = moe_sampler_next(&sampler, logits, recent, 8);
        assert_true(token >= 0 && token < (int32_t)N);
        assert_true(!any_number || !isnan(logits[token]));
        moe_sampler_free(&sampler);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(follows_softmax),
        cmocka_unit_test(filters_keep_exactly_their_set),
        cmocka_unit_test(greedy_takes_the_lowest_of_equals),
        cmocka_unit_test(repetition_is_penalised),
        cmocka_unit_test(seeds_reproduce),
        cmocka_unit_test(logits_that_are_no_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
