/* SPDX-License-Identifier: MIT */
#include "runtime/speculate/accept.h"

#include <math.h>
#include <stdlib.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

uint32_t moe_accept_exact(const moe_token_tree *tree, uint32_t node, int32_t choice)
{
    return moe_token_tree_child(tree, node, choice);
}

static double total(const moe_distribution *d)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < d->n; i++) {
        sum += d->choices[i].p;
    }
    return sum;
}

static moe_choice *choice_of(const moe_distribution *d, int32_t token)
{
    for (uint32_t i = 0; i < d->n; i++) {
        if (d->choices[i].token == token) {
            return &d->choices[i];
        }
    }
    return NULL;
}

static double weight_of(const moe_distribution *d, int32_t token)
{
    const moe_choice *choice = choice_of(d, token);
    return choice != NULL ? choice->p : 0.0;
}

int32_t moe_distribution_draw(const moe_distribution *d, moe_random *random)
{
    double left = total(d) * moe_random_uniform(random);
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
        /* -log(u) >= 1 - u: nearly all have lost without the logarithm. A part in a billion is far
         * more than rounding changes. */
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

static int by_token(const void *a, const void *b)
{
    int32_t x = ((const moe_choice *)a)->token;
    int32_t y = ((const moe_choice *)b)->token;
    return (x > y) - (x < y);
}

/* target <- max(p - q, 0), both taken as normalised. Both are sorted by token for it, so that a
 * whole vocabulary does not take the square of its size. */
static void subtract(moe_distribution *target, moe_distribution *draft)
{
    double p_sum = total(target);
    double q_sum = total(draft);
    qsort(target->choices, target->n, sizeof *target->choices, by_token);
    qsort(draft->choices, draft->n, sizeof *draft->choices, by_token);
    uint32_t k = 0;
    for (uint32_t i = 0; i < target->n; i++) {
        moe_choice *choice = &target->choices[i];
        while (k < draft->n && draft->choices[k].token < choice->token) {
            k++;
        }
        bool is_drafted = k < draft->n && draft->choices[k].token == choice->token;
        double p = choice->p / p_sum - (is_drafted ? draft->choices[k].p / q_sum : 0.0);
        choice->p = p > 0.0 ? p : 0.0;
    }
}

static void forget(moe_distribution *d, int32_t token)
{
    moe_choice *choice = choice_of(d, token);
    if (choice != NULL) {
        choice->p = 0.0;
    }
}

/* One candidate: accepted with min(1, p / q). */
static bool accept_one(const moe_distribution *target, const moe_distribution *draft, int32_t token,
                       moe_random *random)
{
    double p = weight_of(target, token) / total(target);
    double q = draft != NULL ? weight_of(draft, token) / total(draft) : 1.0;
    return moe_random_uniform(random) * q < p;
}

uint32_t moe_accept_rejection(const moe_token_tree *tree, uint32_t node, moe_distribution *target,
                              moe_distribution *draft, moe_random *random, int32_t *token)
{
    for (uint32_t child = tree->nodes[node].first_child; child != MOE_NODE_NONE;
         child = tree->nodes[child].next_sibling) {
        int32_t candidate = tree->nodes[child].token;
        if (accept_one(target, draft, candidate, random)) {
            return child;
        }
        if (draft != NULL) {
            subtract(target, draft);
            forget(draft, candidate);
        } else {
            forget(target, candidate);
        }
        if (!(total(target) > 0.0)) {
            /* Rounding left nothing: target and draft were the same. */
            *token = candidate;
            return child;
        }
        if (draft != NULL && !(total(draft) > 0.0)) {
            break;
        }
    }
    *token = moe_distribution_draw(target, random);
    return MOE_NODE_NONE;
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
