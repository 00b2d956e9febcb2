/* SPDX-License-Identifier: MIT */
/* Lossy: a verification pass uses at most B experts of each layer (MoE-Spec, section 3). */
#ifndef MOE_LOSSY_EXPERT_BUDGET_H
#define MOE_LOSSY_EXPERT_BUDGET_H

#include "runtime/pass/route_edit.h"

typedef enum moe_budget_ranking {
    MOE_BUDGET_ROUTER, /* s_i = sum over rows of the router's probability */
    MOE_BUDGET_STATIC, /* calibration counts */
    MOE_BUDGET_ORACLE  /* the experts' true contributions (budget_oracle.h), in `listed` */
} moe_budget_ranking;

typedef enum moe_budget_coverage {
    MOE_BUDGET_SUBSTITUTE, /* the top-k within the shortlist, weights by the model's rule */
    MOE_BUDGET_TRUNCATE    /* natural picks off the list are dropped, other weights unchanged */
} moe_budget_coverage;

typedef struct moe_expert_budget {
    uint32_t n_experts; /* B; at least n_used; n_expert or more: nothing is changed */
    moe_budget_ranking ranking;
    moe_budget_coverage coverage;
    bool resident_is_free;  /* the list has all resident experts, and B others */
    const float *counts;    /* [n_expert] of the layer, for MOE_BUDGET_STATIC; NULL: ROUTER */
    const uint32_t *listed; /* a complete shortlist from outside (analysis), or NULL */
    uint32_t n_listed;
} moe_expert_budget;

typedef struct moe_budget_stats {
    uint64_t n_layers;   /* calls, whether or not they changed anything */
    uint64_t n_picks;    /* natural picks seen */
    uint64_t n_replaced; /* natural picks that another expert replaced */
    uint64_t n_dropped;  /* ... that nothing replaced; the other picks stayed */
    double mass_natural; /* sum of the natural picks' router probabilities, */
    double mass_kept;    /* ... and of those picks that were on the list */
    uint64_t n_experts_natural, n_experts_used; /* sums of distinct experts in each layer */
} moe_budget_stats;

/* Applies the budget to a layer's routes. scratch: [2 * n_expert] floats, allocated by the caller.
 * s_i is summed over rows in order; of equal s_i the lower id wins. Rows whose picks are all on the
 * list are not changed, so the result is bit-identical to no budget when every natural pick is on
 * the list. Adds to stats. Two threads must not share a scratch. */
void moe_expert_budget_apply(const moe_expert_budget *budget, moe_route_edit *edit, float *scratch,
                             moe_budget_stats *stats);

#endif
