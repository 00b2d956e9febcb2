/* SPDX-License-Identifier: MIT */
/* The order in which a step's drafters are asked. The first that drafts is the step's. */
#ifndef MOE_DRAFT_DRAFT_ORDER_H
#define MOE_DRAFT_DRAFT_ORDER_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/draft/speculation.h"

/* `auto` drafts with the model itself for so many sessions at least: with a cache it has not paid
 * for fewer (bench/results/speculation.md). */
#define MOE_SELF_LEAST_SESSIONS 4u

typedef struct moe_draft_promises {
    bool is_auto;
    uint32_t n_writing; /* sessions that write */
    bool ngram_rests;   /* n-grams are not used, or are certain to draft nothing */
    bool own_was_first; /* in the step before */
    /* [MOE_DRAFTERS] plain decoding's cost over what is expected with the drafter; 0: not used. */
    double promise[MOE_DRAFTERS];
} moe_draft_promises;

/* Drafting from the text is the cheapest, but few sequences of a batch repeat themselves at once:
 * there the model's own draft goes first where it wins more, the drafting layer's or the restricted
 * model's. True: it does; if it costs a pass no other drafter should be asked. */
bool moe_draft_order(const moe_draft_promises *promises, moe_drafter order[MOE_DRAFTERS]);

#endif
