/* SPDX-License-Identifier: MIT */
/* The oracle of offload mode overlap, a baseline of the papers: the next layer's experts are known
 * in advance. No deployable method knows them, so every pass is run twice. The first run records
 * which experts each layer requests. The second run has the same bits, since passes are exact; it
 * loads each layer's experts while the layer before is computed, and keeps nothing. Only the second
 * run counts: the first run's moves are subtracted from the statistics, and its time is reported
 * separately.
 *
 * If the host tier does not hold every expert, the first run leaves it warmer than a single run
 * would find it, and the baseline looks better than it is. */
#ifndef MOE_LAB_OVERLAP_ORACLE_H
#define MOE_LAB_OVERLAP_ORACLE_H

#include "offload/expert_store.h"
#include "runtime/pass/pass_hooks.h"

typedef struct moe_overlap_oracle {
    moe_pass_hook hook;
    uint32_t n_expert;
    uint32_t *n_experts; /* [n_layer] that the pass requests */
    uint32_t *experts;   /* [n_layer][n_expert] */
    bool recording;
    uint64_t recording_ns;           /* time of all recording runs */
    moe_expert_store_stats recorded; /* what recording runs added to the store's counters */
} moe_overlap_oracle;

/* Adds its hook to the runner. */
int moe_overlap_oracle_create(moe_overlap_oracle **out, moe_runner *runner, moe_error *err);
/* Frees it. No pass may be running. */
void moe_overlap_oracle_destroy(moe_overlap_oracle **oracle);

/* Subtracts the recording runs from the store's counters. */
void moe_overlap_correct(const moe_overlap_oracle *oracle, moe_expert_store_stats *stats);

#endif
