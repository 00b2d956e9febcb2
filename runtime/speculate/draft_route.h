/* SPDX-License-Identifier: MIT */
/* Routing of the self-assisted draft: only resident experts compute (SpecMoE, section 4). */
#ifndef MOE_SPECULATE_DRAFT_ROUTE_H
#define MOE_SPECULATE_DRAFT_ROUTE_H

#include "runtime/base/random.h"
#include "runtime/speculate/route_edit.h"

/* What stands in for a pick that is not resident. */
typedef enum moe_draft_fill {
    MOE_DRAFT_FILL_AFFINITY, /* its nearest resident expert that is unused, by the table */
    MOE_DRAFT_FILL_ROUTER,   /* the top-k of the router among the resident */
    MOE_DRAFT_FILL_RANDOM,   /* any resident one (baseline) */
    MOE_DRAFT_FILL_NONE      /* nothing: the rank is dropped */
} moe_draft_fill;

typedef struct moe_draft_routing {
    moe_draft_fill fill;
    const uint16_t *affinity; /* [n_expert][n_expert] of this layer, or NULL: ROUTER instead */
    moe_random *random;       /* of MOE_DRAFT_FILL_RANDOM */
} moe_draft_routing;

/* resident: those that the draft may use. With fewer of them than n_used every one is used and the
 * ranks left over are dropped; with exactly n_used all are used, in the order of their probability
 * (algorithms, 1.2). A stand-in takes the weight of the rank it serves; where picks are redone
 * (ROUTER, or fewer than or exactly n_used) the weights are the model's rule over them. */
void moe_draft_route(const moe_draft_routing *routing, moe_route_edit *edit);

/* Which experts of a layer are kept for the next draft (algorithms, 1.5). */
typedef enum moe_draft_pin {
    MOE_DRAFT_PIN_HOT_TEMPORAL, /* the most activated of the verification pass just done */
    MOE_DRAFT_PIN_HOT_GLOBAL,   /* of calibration */
    MOE_DRAFT_PIN_RANDOM
} moe_draft_pin;

/* The n experts with the greatest score, ties to the lower id, greatest first; returns how many. */
uint32_t moe_draft_hottest(const float *score, uint32_t n_expert, uint32_t n, uint32_t *experts);

#endif
