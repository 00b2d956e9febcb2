/* SPDX-License-Identifier: MIT */
/* Foresight: a draft records the experts that its rows would have chosen without the restriction to
 * resident ones. Verification of the same tokens will need most of them, so their reads begin while
 * the draft still runs. An expert is remembered with the depth at which it was first chosen. When a
 * draft is cut short, requests that only later tokens wanted are cancelled. */
#ifndef MOE_DRAFT_FORESIGHT_H
#define MOE_DRAFT_FORESIGHT_H

#include <stdbool.h>
#include <stdint.h>

#include <moe/statistics.h>
#include <moe/status.h>

/* Recall is measured separately for this many depths; deeper ones count as the last. */
#define MOE_FORESIGHT_DEPTHS MOE_DRAFT_POSITIONS

typedef struct moe_foresight {
    uint32_t n_layer;
    uint32_t n_expert;
    uint16_t *depth; /* [n_layer][n_expert] 1 + depth of the first row that chose it; 0: none */
    bool any;
    /* Counted while verifying: distinct experts requested, how many of these had been foreseen,
     * and how many were foreseen in total. */
    uint64_t n_asked, n_asked_foreseen, n_foreseen;
    uint64_t *asked_of_layer;                   /* [n_layer] */
    uint64_t *foreseen_of_layer;                /* [n_layer] of those, foreseen */
    uint64_t n_row_picks[MOE_FORESIGHT_DEPTHS]; /* picks of verification's rows, by depth */
    uint64_t n_row_picks_foreseen[MOE_FORESIGHT_DEPTHS];
} moe_foresight;

int moe_foresight_init(moe_foresight *foresight, uint32_t n_layer, uint32_t n_expert,
                       moe_error *err);
void moe_foresight_free(moe_foresight *foresight);
/* Begins a new draft. */
void moe_foresight_reset(moe_foresight *foresight);
/* Notes experts that a draft row at this depth would have chosen without the restriction. */
void moe_foresight_add(moe_foresight *foresight, uint32_t layer, uint32_t depth,
                       const uint32_t *experts, uint32_t n);
bool moe_foresight_has(const moe_foresight *foresight, uint32_t layer, uint32_t expert,
                       uint32_t max_depth);
/* Compares the foreseen experts with the n distinct experts that verification requests in a
 * layer. */
void moe_foresight_score(moe_foresight *foresight, uint32_t layer, const uint32_t *experts,
                         uint32_t n);
/* Compares the experts foreseen for this depth with those that a row of the verification chose. */
void moe_foresight_score_row(moe_foresight *foresight, uint32_t layer, uint32_t depth,
                             const uint32_t *experts, uint32_t n);
/* Sets the recall (the share of used experts that were foreseen) in *stats; leaves its other
 * members unchanged. */
void moe_foresight_get_stats(const moe_foresight *foresight, moe_speculation_stats *stats);

#endif
