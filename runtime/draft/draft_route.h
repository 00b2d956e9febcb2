/* SPDX-License-Identifier: MIT */
/* Routing of the self-assisted draft: only resident experts compute (SpecMoE, section 4). */
#ifndef MOE_DRAFT_DRAFT_ROUTE_H
#define MOE_DRAFT_DRAFT_ROUTE_H

#include "runtime/base/random.h"
#include "runtime/pass/route_edit.h"

/* How to choose the stand-in for a pick that is not resident. */
typedef enum moe_draft_fill {
    MOE_DRAFT_FILL_AFFINITY, /* the pick's nearest unused resident expert, by `affinity` */
    MOE_DRAFT_FILL_ROUTER,   /* the top-k of the router among the resident */
    MOE_DRAFT_FILL_RANDOM,   /* any resident one (baseline) */
    MOE_DRAFT_FILL_NONE      /* nothing replaces it: the rank is dropped */
} moe_draft_fill;

typedef struct moe_draft_routing {
    moe_draft_fill fill;
    const uint16_t *affinity; /* [n_expert][n_expert] of this layer, or NULL: ROUTER instead */
    moe_random *random;       /* for MOE_DRAFT_FILL_RANDOM */
} moe_draft_routing;

/* Restricts the routing to the resident experts (edit->resident).
 *
 * A row whose picks are all resident is unchanged, bit by bit. In other rows, resident picks keep
 * their ranks. Each other rank gets a stand-in: an expert that the row does not have yet, with
 * the weight of that rank.
 *
 * If there are at most n_used resident experts, the row uses all of them in the router's order
 * and drops the ranks left over. In this case, and with MOE_DRAFT_FILL_ROUTER, the weights are
 * computed from the row's experts by the model's rule. MOE_DRAFT_FILL_NONE uses no stand-ins: it
 * drops the ranks without a resident pick, and the other ranks keep their weights. */
void moe_draft_route(const moe_draft_routing *routing, moe_route_edit *edit);

/* Finds the n experts with the greatest scores, greatest first; of equal scores, the lower expert
 * comes first. Returns how many there are. */
uint32_t moe_draft_hottest(const float *score, uint32_t n_expert, uint32_t n, uint32_t *experts);

#endif
