/* SPDX-License-Identifier: MIT */
/* Frequency with decay: an expert's score is the sum over its uses of 2^(-age / half-life), so that
 * it forgets as the text moves on. Scores are kept for every expert, resident or not.
 *
 * All scores decay alike, so their order only changes at a use. What is stored is the logarithm of
 * the score as it would be if nothing decayed and later uses counted for more,
 *     log2(sum of 2^(time of use / half-life)),
 * which grows without overflow; the heap never needs rebuilding. O(log n). */
#include <math.h>
#include <stdlib.h>

#include "cache/key_heap.h"
#include "cache/policies.h"
#include "runtime/base/alloc.h"

/* In passes. */
#define HALF_LIFE 16.0

typedef struct lfru_state {
    moe_key_heap heap;   /* of what is resident, by score */
    double *score;       /* [n_keys] as above; -INFINITY: never used */
    uint64_t n_accesses; /* breaks ties by recency */
} lfru_state;

static void lfru_destroy(void *state)
{
    lfru_state *lfru = state;
    moe_key_heap_release(&lfru->heap);
    free(lfru->score);
    free(lfru);
}

static void *lfru_create(const moe_policy_config *config)
{
    lfru_state *lfru = moe_calloc(1, sizeof *lfru);
    if (lfru == NULL) {
        return NULL;
    }
    lfru->score = moe_calloc(config->n_keys, sizeof *lfru->score);
    if (!moe_key_heap_init(&lfru->heap, config->n_keys) || lfru->score == NULL) {
        lfru_destroy(lfru);
        return NULL;
    }
    for (uint32_t key = 0; key < config->n_keys; key++) {
        lfru->score[key] = -INFINITY;
    }
    return lfru;
}

/* log2(2^a + 2^b); b is finite. */
static double add_in_log2(double a, double b)
{
    double high = a > b ? a : b;
    double low = a > b ? b : a;
    return high + log2(1.0 + exp2(low - high));
}

static void lfru_use(void *state, uint32_t key, const moe_policy_access *access)
{
    lfru_state *lfru = state;
    if (access->n_rows > 0) {
        lfru->score[key] = add_in_log2(lfru->score[key], (double)access->pass / HALF_LIFE);
    }
    moe_key_heap_set(&lfru->heap, key, lfru->score[key], ++lfru->n_accesses);
}

static void lfru_evict(void *state, uint32_t key)
{
    lfru_state *lfru = state;
    moe_key_heap_remove(&lfru->heap, key);
}

static uint32_t lfru_victim(void *state, uint32_t for_key, moe_policy_evictable evictable,
                            void *context)
{
    lfru_state *lfru = state;
    (void)for_key;
    return moe_key_heap_first_evictable(&lfru->heap, evictable, context);
}

static void lfru_end_pass(void *state, uint64_t pass)
{
    (void)state;
    (void)pass;
}

const moe_policy moe_policy_lfru = {
    .abi = MOE_POLICY_ABI,
    .name = "lfru",
    .create = lfru_create,
    .destroy = lfru_destroy,
    .hit = lfru_use,
    .insert = lfru_use,
    .evict = lfru_evict,
    .victim = lfru_victim,
    .end_pass = lfru_end_pass,
};
