/* SPDX-License-Identifier: MIT */
/* A draft that runs ahead of a replayed trace, with given rates of being right, in the place of a
 * model's: what it expects each pass to use goes to the cache as forecasts.
 *
 * It drafts pass after pass: pass t + 1 is right with probability `stands`, t + 2 with the same
 * when t + 1 is, and so on. The pass at hand is always right, because its tokens are known. Of a
 * pass that is right each expert is named with probability `recall`, of one that is wrong with
 * `recall_wrong`; names that are not the pass's are drawn by how often the trace uses an expert. A
 * pass is drafted once: only when it comes and was wrong, it and all that follows are drafted
 * again. */
#ifndef MOE_CACHE_SIMULATED_DRAFT_H
#define MOE_CACHE_SIMULATED_DRAFT_H

#include "cache/access_list.h"

typedef struct moe_simulated_draft_options {
    uint32_t n_ahead; /* passes beyond the one at hand */
    double stands;
    double recall;
    double recall_wrong;
    uint64_t seed;
} moe_simulated_draft_options;

typedef struct moe_simulated_draft moe_simulated_draft;

/* list outlives the draft. MOE_ERR_MEMORY, MOE_ERR_ARGUMENT. */
int moe_simulated_draft_create(moe_simulated_draft **out, const moe_access_list *list,
                               uint32_t n_expert, const moe_simulated_draft_options *options,
                               moe_error *err);
void moe_simulated_draft_destroy(moe_simulated_draft **draft);

/* What is expected of the passes from `pass` on, which is asked for in order. Valid until the next
 * call. */
const moe_policy_forecast *moe_simulated_draft_look(moe_simulated_draft *draft, uint64_t pass,
                                                    size_t *n);

#endif
