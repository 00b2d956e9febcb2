/* SPDX-License-Identifier: MIT */
/* Pearson's chi-square over cells with large enough expectations: whether counts come from a
 * distribution. */
#ifndef MOE_TESTS_CHI_SQUARE_H
#define MOE_TESTS_CHI_SQUARE_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct chi_square {
    double sum;
    uint32_t freedom;
    bool impossible; /* something was seen that has probability 0 */
} chi_square;

/* How many standard deviations the sum lies above what the same distribution gives: below 5 in all
 * but about 1 of 100,000 cases (the sum's tail is a little heavier than the normal one's). */
static inline double chi_square_excess(const chi_square *c)
{
    return c->impossible ? INFINITY : (c->sum - c->freedom) / sqrt(2.0 * c->freedom);
}

#define CHI_SQUARE_LIMIT 5.0

/* seen: [n] counts that add up to n_seen; p: [n] probabilities. Cells that expect less than ten are
 * taken together. */
static inline chi_square chi_square_one(const uint32_t *seen, const double *p, uint32_t n,
                                        uint32_t n_seen)
{
    chi_square c = {0.0, 0, false};
    double rest = 0.0, rest_expected = 0.0;
    uint32_t cells = 0;
    for (uint32_t i = 0; i < n; i++) {
        double expected = p[i] * n_seen;
        c.impossible |= p[i] <= 0.0 && seen[i] > 0;
        if (expected < 10.0) {
            rest += seen[i];
            rest_expected += expected;
            continue;
        }
        c.sum += (seen[i] - expected) * (seen[i] - expected) / expected;
        cells++;
    }
    if (rest_expected >= 10.0) {
        c.sum += (rest - rest_expected) * (rest - rest_expected) / rest_expected;
        cells++;
    }
    c.freedom = cells > 1 ? cells - 1 : 1;
    return c;
}

/* Two samples of the same distribution? a and b: [n] counts. */
static inline chi_square chi_square_two(const uint32_t *a, const uint32_t *b, uint32_t n)
{
    chi_square c = {0.0, 0, false};
    double a_all = 0.0, b_all = 0.0, a_rest = 0.0, b_rest = 0.0;
    uint32_t cells = 0;
    for (uint32_t i = 0; i < n; i++) {
        a_all += a[i];
        b_all += b[i];
    }
    double to_a = sqrt(b_all / a_all);
    for (uint32_t i = 0; i <= n; i++) {
        double x = i < n ? a[i] : a_rest;
        double y = i < n ? b[i] : b_rest;
        if (x + y < 20.0) {
            a_rest += i < n ? x : 0.0;
            b_rest += i < n ? y : 0.0;
            continue;
        }
        double difference = x * to_a - y / to_a;
        c.sum += difference * difference / (x + y);
        cells++;
    }
    c.freedom = cells > 1 ? cells - 1 : 1;
    return c;
}

#endif
