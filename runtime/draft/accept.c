/* SPDX-License-Identifier: MIT */
#include "runtime/draft/accept.h"

#include <stdlib.h>

uint32_t moe_accept_exact(const moe_token_tree *tree, uint32_t node, int32_t choice)
{
    return moe_token_tree_child(tree, node, choice);
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

static int by_token(const void *a, const void *b)
{
    int32_t x = ((const moe_choice *)a)->token;
    int32_t y = ((const moe_choice *)b)->token;
    return (x > y) - (x < y);
}

/* Replaces the target distribution p by max(p - q, 0), where q is the draft's distribution, both
 * taken as normalised. Sorts both by token first, so that the time is not quadratic in the
 * vocabulary's size. */
static void subtract(moe_distribution *target, moe_distribution *draft)
{
    double p_sum = moe_distribution_total(target);
    double q_sum = moe_distribution_total(draft);
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

/* Accepts a candidate token with probability min(1, p / q), its probabilities by the target and
 * by the draft. */
static bool accept_one(const moe_distribution *target, const moe_distribution *draft, int32_t token,
                       moe_random *random)
{
    double p = weight_of(target, token) / moe_distribution_total(target);
    double q = draft != NULL ? weight_of(draft, token) / moe_distribution_total(draft) : 1.0;
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
        if (!(moe_distribution_total(target) > 0.0)) {
            /* Because of rounding no probability is left (target and draft were equal), so the
             * candidate itself is emitted. */
            *token = candidate;
            return child;
        }
        if (draft != NULL && !(moe_distribution_total(draft) > 0.0)) {
            break;
        }
    }
    *token = moe_distribution_draw(target, random);
    return MOE_NODE_NONE;
}
