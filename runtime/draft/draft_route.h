/* SPDX-License-Identifier: MIT */
/* Routing of the self-assisted draft: only resident experts compute (SpecMoE, section 4). */
#ifndef MOE_DRAFT_DRAFT_ROUTE_H
#define MOE_DRAFT_DRAFT_ROUTE_H

#include "runtime/base/random.h"
#include "runtime/pass/route_edit.h"

/* The expert that replaces a pick that is not resident. */
typedef enum moe_draft_fill {
    MOE_DRAFT_FILL_AFFINITY, /* its nearest unused resident expert, by the table */
    MOE_DRAFT_FILL_ROUTER,   /* the top-k of the router among the resident */
    MOE_DRAFT_FILL_RANDOM,   /* any resident one (baseline) */
    MOE_DRAFT_FILL_NONE      /* nothing replaces it: the rank is dropped */
} moe_draft_fill;

typedef struct moe_draft_routing {
    moe_draft_fill fill;
    const uint16_t *affinity; /* [n_expert][n_expert] of this layer, or NULL: ROUTER instead */
    moe_random *random;       /* of MOE_DRAFT_FILL_RANDOM */
} moe_draft_routing;

/* edit->resident: the experts that the draft may use. A row whose picks are all resident keeps its
 * bits. In other rows resident picks keep their ranks, and the other ranks get, in order, experts
 * that the row does not have yet; such a stand-in takes the weight of its rank. If there are n_used
 * resident experts or fewer, the row uses all of them in the router's order (algorithms, 1.2) and
 * drops the ranks left over. In this case, and with ROUTER, the model's rule computes the weights
 * from the row's experts. MOE_DRAFT_FILL_NONE always drops ranks without a resident pick; the other
 * ranks keep their weights. */
void moe_draft_route(const moe_draft_routing *routing, moe_route_edit *edit);

/* The n experts with the greatest score, ties to the lower id, greatest first; returns how many. */
uint32_t moe_draft_hottest(const float *score, uint32_t n_expert, uint32_t n, uint32_t *experts);

#endif
