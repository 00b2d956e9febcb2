/* SPDX-License-Identifier: MIT */
#include "runtime/sampling/distribution.h"

#include <math.h>
#include <stdlib.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

double moe_distribution_total(const moe_distribution *d)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < d->n; i++) {
        sum += d->choices[i].p;
    }
    return sum;
}

int32_t moe_distribution_draw(const moe_distribution *d, moe_random *random)
{
    double left = moe_distribution_total(d) * moe_random_uniform(random);
    uint32_t last = 0;
    for (uint32_t i = 0; i < d->n; i++) {
        if (d->choices[i].p > 0.0) {
            left -= d->choices[i].p;
            last = i;
            if (left < 0.0) {
                break;
            }
        }
    }
    return d->choices[last].token;
}

int32_t moe_distribution_race(const moe_distribution *d, uint64_t number)
{
    double best = INFINITY;
    int32_t winner = d->choices[0].token;
    for (uint32_t i = 0; i < d->n; i++) {
        const moe_choice *c = &d->choices[i];
        double uniform = moe_random_mix(number, (uint32_t)c->token);
        /* -log(u) >= 1 - u: this rules out nearly all without a logarithm. The margin, a part in a
         * billion, is far larger than rounding errors. */
        if (1.0 - uniform > best * c->p * (1.0 + 1e-9)) {
            continue;
        }
        double arrival = c->p > 0.0 ? -log(uniform) / c->p : INFINITY;
        if (arrival < best || (arrival == best && c->token < winner)) {
            best = arrival;
            winner = c->token;
        }
    }
    return winner;
}

/* A drawn token is skipped from then on: its weight leaves the sum. */
uint32_t moe_distribution_draw_distinct(const moe_distribution *d, uint32_t n, moe_random *random,
                                        int32_t *tokens, float *q)
{
    uint32_t n_drawn = 0;
    while (n_drawn < n) {
        double sum = 0.0;
        for (uint32_t i = 0; i < d->n; i++) {
            bool drawn = false;
            for (uint32_t k = 0; k < n_drawn; k++) {
                drawn |= tokens[k] == d->choices[i].token;
            }
            sum += drawn ? 0.0 : d->choices[i].p;
        }
        if (!(sum > 0.0)) {
            break;
        }
        double left = sum * moe_random_uniform(random);
        uint32_t last = d->n;
        for (uint32_t i = 0; i < d->n && (last == d->n || left >= 0.0); i++) {
            bool drawn = d->choices[i].p <= 0.0;
            for (uint32_t k = 0; k < n_drawn; k++) {
                drawn |= tokens[k] == d->choices[i].token;
            }
            if (!drawn) {
                left -= d->choices[i].p;
                last = i;
            }
        }
        q[n_drawn] = (float)(d->choices[last].p / sum);
        tokens[n_drawn++] = d->choices[last].token;
    }
    return n_drawn;
}

int moe_distribution_copy(moe_distribution *out, uint32_t *capacity, const moe_distribution *from,
                          moe_error *err)
{
    if (from->n > *capacity) {
        moe_choice *bigger = moe_realloc_array(out->choices, from->n, sizeof *bigger);
        if (bigger == NULL) {
            return moe_fail(err, MOE_ERR_MEMORY, "no memory for a distribution of %u tokens",
                            from->n);
        }
        out->choices = bigger;
        *capacity = from->n;
    }
    for (uint32_t i = 0; i < from->n; i++) {
        out->choices[i] = from->choices[i];
    }
    out->n = from->n;
    return MOE_OK;
}
