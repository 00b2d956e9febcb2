/* SPDX-License-Identifier: MIT */
/* What policies share that give every expert a number and evict the smallest: the heap of what is
 * resident, and one score an expert that outlives its eviction. Each of them only says how a use
 * changes the number. */
#ifndef MOE_CACHE_POLICY_RANKED_H
#define MOE_CACHE_POLICY_RANKED_H

#include "cache/key_heap.h"

typedef struct moe_ranked {
    moe_key_heap heap;
    double *score;   /* [n_keys] */
    double *weight;  /* [n_keys] what a use adds is scaled with, as log2 */
    uint64_t n_uses; /* a clock: breaks ties by recency */
} moe_ranked;

/* Scores begin with `score`, weights with 0. NULL when memory is short. */
moe_ranked *moe_ranked_create(const moe_policy_config *config, double score);
void moe_ranked_destroy(void *state);
void moe_ranked_evict(void *state, uint32_t key);
uint32_t moe_ranked_victim(void *state, uint32_t for_key, moe_policy_evictable evictable,
                           void *context);

/* The key is resident and its score is up to date: places it. */
void moe_ranked_place(moe_ranked *ranked, uint32_t key);

/* Scores that forget: a use at pass t with weight w is worth w * 2^-((now - t) / half-life). As all
 * of them fade alike, their order only changes at a use, and it suffices to keep
 *     log2(sum of w * 2^(t / half-life)),
 * which grows slowly instead of overflowing, in a heap that time does not upset. Such scores begin
 * at -INFINITY. log2_weight is finite. */
void moe_ranked_add_fading(moe_ranked *ranked, uint32_t key, double log2_weight, uint64_t pass);

/* For policies that a pass's end tells nothing. */
void moe_policy_ignore_pass(void *state, uint64_t pass);

#endif
