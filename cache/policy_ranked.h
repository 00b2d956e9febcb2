/* SPDX-License-Identifier: MIT */
/* The common part of policies that give every expert a score and evict the smallest: a heap of the
 * resident experts, and one score for each expert that outlives its eviction. Each policy only says
 * how a use changes the score. */
#ifndef MOE_CACHE_POLICY_RANKED_H
#define MOE_CACHE_POLICY_RANKED_H

#include "cache/key_heap.h"

typedef struct moe_ranked {
    moe_key_heap heap;
    double *score;   /* [n_keys] */
    double *weight;  /* [n_keys] log2 of the factor for what a use adds */
    uint64_t n_uses; /* a clock: breaks ties by recency */
} moe_ranked;

/* Creates the state. Every score begins as `score`, and every weight as 0. NULL: memory is
 * short. */
moe_ranked *moe_ranked_create(const moe_policy_config *config, double score);
void moe_ranked_destroy(void *state);
void moe_ranked_evict(void *state, uint32_t key);
uint32_t moe_ranked_victim(void *state, uint32_t for_key, moe_policy_evictable evictable,
                           void *context);

/* Puts a resident key into the heap, by its current score. */
void moe_ranked_place(moe_ranked *ranked, uint32_t key);

/* Adds to a fading score: a use at pass t with weight w is worth w * 2^-((now - t) / half-life).
 * All scores fade alike, so their order changes only at a use. It suffices to keep
 *
 *    log2(sum of w * 2^(t / half-life)),
 *
 * which grows slowly instead of overflowing, and the heap stays valid as time passes. Such scores
 * begin at -INFINITY. log2_weight is finite. */
void moe_ranked_add_fading(moe_ranked *ranked, uint32_t key, double log2_weight, uint64_t pass);

/* An end_pass hook that does nothing. */
void moe_policy_ignore_pass(void *state, uint64_t pass);

#endif
