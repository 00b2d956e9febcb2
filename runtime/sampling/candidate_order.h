/* SPDX-License-Identifier: MIT */
/* Orders the candidates of a vocabulary as filters cut them: descending logits, the lower token
 * first among equals. */
#ifndef MOE_SAMPLING_CANDIDATE_ORDER_H
#define MOE_SAMPLING_CANDIDATE_ORDER_H

#include <stdint.h>

typedef struct moe_candidate {
    float logit; /* not NaN */
    int32_t token;
} moe_candidate;

/* Puts the n best of the n_all candidates into candidates[0 .. n), in order; n at most n_all. The
 * others may be lost, since both arrays, of n_all each, are used. candidates: by ascending tokens
 * at the call.
 */
void moe_candidates_order(moe_candidate *candidates, moe_candidate *spare, uint32_t n_all,
                          uint32_t n);

#endif
