/* SPDX-License-Identifier: MIT */
/* With c_r = weight * output of a row's rank r, and R the sum of the c_r that are not listed,
 * listing i reduces the error by
 *
 *    |R|^2 - |R - c_i|^2 = 2 sum over r not listed of c_r . c_i - |c_i|^2
 *
 * So the outputs are only needed for the products of a row's ranks with each other. */
#include "runtime/lab/budget_oracle.h"

#include <string.h>

static bool is_pick(const moe_route_edit *edit, size_t slot)
{
    return edit->experts[slot] < edit->n_expert;
}

static double product(const float *a, const float *b, uint32_t n)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        sum += (double)a[i] * (double)b[i];
    }
    return sum;
}

static void fill_gram(const moe_route_edit *edit, const float *outs, uint32_t n, double *gram)
{
    uint32_t k = edit->n_used;
    for (uint32_t row = 0; row < edit->n_rows; row++) {
        double *g = gram + (size_t)row * k * k;
        for (uint32_t a = 0; a < k; a++) {
            for (uint32_t b = 0; b <= a; b++) {
                size_t i = (size_t)row * k + a, j = (size_t)row * k + b;
                bool both = is_pick(edit, i) && is_pick(edit, j);
                double weights = (double)edit->weights[i] * (double)edit->weights[j];
                g[a * k + b] = g[b * k + a] =
                    both ? weights * product(outs + i * n, outs + j * n, n) : 0.0;
            }
        }
    }
}

static bool is_listed(const uint32_t *list, uint32_t n, uint32_t expert)
{
    for (uint32_t i = 0; i < n; i++) {
        if (list[i] == expert) {
            return true;
        }
    }
    return false;
}

/* gain[e]: by how much listing e reduces the error. */
static void fill_gains(const moe_route_edit *edit, const double *gram, const uint32_t *list,
                       uint32_t n_listed, double *gain)
{
    uint32_t k = edit->n_used;
    memset(gain, 0, edit->n_expert * sizeof *gain);
    for (uint32_t row = 0; row < edit->n_rows; row++) {
        const uint32_t *experts = edit->experts + (size_t)row * k;
        const double *g = gram + (size_t)row * k * k;
        for (uint32_t b = 0; b < k; b++) {
            if (experts[b] >= edit->n_expert || is_listed(list, n_listed, experts[b])) {
                continue;
            }
            for (uint32_t a = 0; a < k; a++) {
                if (experts[a] < edit->n_expert && experts[a] != experts[b]) {
                    gain[experts[a]] += 2.0 * g[a * k + b];
                }
            }
            gain[experts[b]] += g[b * k + b];
        }
    }
}

/* The natural expert with the greatest gain that is not listed yet, or MOE_EXPERT_NONE. */
static uint32_t best_of(const moe_route_edit *edit, const double *gain, const uint32_t *list,
                        uint32_t n_listed)
{
    uint32_t best = MOE_EXPERT_NONE;
    for (size_t slot = 0; slot < (size_t)edit->n_rows * edit->n_used; slot++) {
        uint32_t e = edit->experts[slot];
        if (!is_pick(edit, slot) || is_listed(list, n_listed, e)) {
            continue;
        }
        if (best == MOE_EXPERT_NONE || gain[e] > gain[best] ||
            (gain[e] == gain[best] && e < best)) {
            best = e;
        }
    }
    return best;
}

uint32_t moe_budget_oracle_list(const moe_route_edit *edit, const float *outs, uint32_t n,
                                double *gram, double *gain, uint32_t *list, uint32_t n_list)
{
    uint32_t n_listed = 0;
    fill_gram(edit, outs, n, gram);
    while (n_listed < n_list) {
        fill_gains(edit, gram, list, n_listed, gain);
        uint32_t best = best_of(edit, gain, list, n_listed);
        if (best == MOE_EXPERT_NONE) {
            break;
        }
        list[n_listed++] = best;
    }
    return n_listed;
}

double moe_relative_square_error(const float *exact, const float *now, size_t n_rows, size_t n)
{
    double difference = 0.0, whole = 0.0;
    for (size_t i = 0; i < n_rows * n; i++) {
        double d = (double)now[i] - (double)exact[i];
        difference += d * d;
        whole += (double)exact[i] * (double)exact[i];
    }
    return whole > 0.0 ? difference / whole : 0.0;
}
