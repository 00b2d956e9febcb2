/* SPDX-License-Identifier: MIT */
/* Simulates, in place of a model's draft, a draft that runs ahead of a replayed trace and is right
 * at given rates. The cache gets what it expects as forecasts.
 *
 * The draft drafts pass after pass. The current pass, t, is always right, because its tokens are
 * known. Pass t + 1 is right with probability `stands`; if it is, t + 2 is right with the same
 * probability, and so on. The draft names each expert of a right pass with probability `recall`,
 * and each expert of a wrong pass with `recall_wrong`; its wrong names are drawn by how often the
 * trace uses an expert. It drafts each pass once. Only when a pass that was drafted wrong becomes
 * the current one does it draft that pass and all later ones again. */
#ifndef MOE_CACHE_SIMULATED_DRAFT_H
#define MOE_CACHE_SIMULATED_DRAFT_H

#include "cache/access_list.h"

typedef struct moe_simulated_draft_options {
    uint32_t n_ahead; /* passes beyond the current one */
    double stands;
    double recall;
    double recall_wrong;
    uint64_t seed;
} moe_simulated_draft_options;

typedef struct moe_simulated_draft moe_simulated_draft;

/* `list` must outlive the draft. Fails with MOE_ERR_MEMORY or MOE_ERR_ARGUMENT. */
int moe_simulated_draft_create(moe_simulated_draft **out, const moe_access_list *list,
                               uint32_t n_expert, const moe_simulated_draft_options *options,
                               moe_error *err);
void moe_simulated_draft_destroy(moe_simulated_draft **draft);

/* Returns the forecasts that the draft makes before `pass`, for it and later passes. Call it in
 * the order of the passes. The result is valid until the next call. */
const moe_policy_forecast *moe_simulated_draft_look(moe_simulated_draft *draft, uint64_t pass,
                                                    size_t *n);

#endif
