/* SPDX-License-Identifier: MIT */
#include "runtime/draft/draft_order.h"

/* The model's own draft goes before n-grams if it promises so many times as much, and stays there
 * until it promises as many times less. */
#define OWN_FIRST 1.05

bool moe_draft_order(const moe_draft_promises *p, moe_drafter order[MOE_DRAFTERS])
{
    bool batch = p->is_auto && p->n_writing >= MOE_SELF_LEAST_SESSIONS;
    double head = p->promise[MOE_DRAFTER_HEAD], self = p->promise[MOE_DRAFTER_SELF];
    bool self_wins = batch && self > head;
    moe_drafter own = self_wins ? MOE_DRAFTER_SELF : MOE_DRAFTER_HEAD;
    double most = self_wins ? self : head;
    double bound = p->promise[MOE_DRAFTER_NGRAM];
    bool first =
        batch && !p->ngram_rests && most * (p->own_was_first ? OWN_FIRST : 1 / OWN_FIRST) > bound;
    order[0] = first ? own : MOE_DRAFTER_NGRAM;
    order[1] = first ? MOE_DRAFTER_NGRAM : own;
    order[2] = self_wins ? MOE_DRAFTER_HEAD : MOE_DRAFTER_SELF;
    order[3] = MOE_DRAFTER_MODEL;
    return first;
}
