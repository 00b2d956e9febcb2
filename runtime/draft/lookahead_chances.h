/* SPDX-License-Identifier: MIT */
/* Learns how often lookahead's draft is right: how often its next token was the text's next
 * token, depending on its confidence; and how often the expert that its router ranked r-th was
 * used, separately for right and wrong tokens. */
#ifndef MOE_DRAFT_LOOKAHEAD_CHANCES_H
#define MOE_DRAFT_LOOKAHEAD_CHANCES_H

#include <stdbool.h>
#include <stdint.h>

#include <moe/status.h>

#define MOE_LOOKAHEAD_BUCKETS 8u

typedef struct moe_hit_count {
    double n, hits;
} moe_hit_count;

typedef struct moe_lookahead_chances {
    uint32_t n_ranks;                            /* experts that a token uses in a layer */
    moe_hit_count stands[MOE_LOOKAHEAD_BUCKETS]; /* by confidence */
    moe_hit_count *named;                        /* [2][n_ranks]: token wrong, token right */
} moe_lookahead_chances;

int moe_lookahead_chances_init(moe_lookahead_chances *chances, uint32_t n_ranks, moe_error *err);
void moe_lookahead_chances_free(moe_lookahead_chances *chances);

/* Returns the chance that a drafted token is the text's. confidence: the probability, in [0, 1],
 * that the draft gave the token. */
double moe_lookahead_stands(const moe_lookahead_chances *chances, float confidence);
void moe_lookahead_note_token(moe_lookahead_chances *chances, float confidence, bool stood);

/* Returns the chance that the expert which the draft ranked `rank`-th is used, if its token is
 * right with probability `right`. */
double moe_lookahead_chance(const moe_lookahead_chances *chances, uint32_t rank, double right);
void moe_lookahead_note_expert(moe_lookahead_chances *chances, uint32_t rank, bool right,
                               bool used);

#endif
