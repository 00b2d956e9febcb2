/* SPDX-License-Identifier: MIT */
#include "runtime/draft/lookahead_chances.h"

#include <stdlib.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

/* Rates that are assumed at first, and the number of tokens that they count as. They were
 * measured with the demo model on held-out text; after a few dozen tokens they hardly matter. */
#define PRIOR_TOKENS      4.0
#define PRIOR_EXPERTS     16.0
#define PRIOR_NAMED_RIGHT 0.9
#define PRIOR_NAMED_WRONG 0.5

int moe_lookahead_chances_init(moe_lookahead_chances *chances, uint32_t n_ranks, moe_error *err)
{
    *chances = (moe_lookahead_chances){.n_ranks = n_ranks};
    chances->named = moe_calloc((size_t)2 * n_ranks, sizeof *chances->named);
    if (chances->named == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for lookahead");
    }
    for (uint32_t i = 0; i < 2 * n_ranks; i++) {
        double prior = i < n_ranks ? PRIOR_NAMED_WRONG : PRIOR_NAMED_RIGHT;
        chances->named[i] = (moe_hit_count){PRIOR_EXPERTS, PRIOR_EXPERTS * prior};
    }
    for (uint32_t b = 0; b < MOE_LOOKAHEAD_BUCKETS; b++) {
        double middle = (b + 0.5) / MOE_LOOKAHEAD_BUCKETS;
        chances->stands[b] = (moe_hit_count){PRIOR_TOKENS, PRIOR_TOKENS * middle};
    }
    return MOE_OK;
}

void moe_lookahead_chances_free(moe_lookahead_chances *chances)
{
    free(chances->named);
    *chances = (moe_lookahead_chances){.n_ranks = 0};
}

static uint32_t bucket_of(float confidence)
{
    float bucket = confidence * MOE_LOOKAHEAD_BUCKETS;
    return bucket >= MOE_LOOKAHEAD_BUCKETS ? MOE_LOOKAHEAD_BUCKETS - 1
           : bucket > 0                    ? (uint32_t)bucket
                                           : 0;
}

static double rate(const moe_hit_count *count)
{
    return count->hits / count->n;
}

static void note(moe_hit_count *count, bool hit)
{
    count->n += 1;
    count->hits += hit;
}

double moe_lookahead_stands(const moe_lookahead_chances *chances, float confidence)
{
    return rate(&chances->stands[bucket_of(confidence)]);
}

void moe_lookahead_note_token(moe_lookahead_chances *chances, float confidence, bool stood)
{
    note(&chances->stands[bucket_of(confidence)], stood);
}

double moe_lookahead_chance(const moe_lookahead_chances *chances, uint32_t rank, double right)
{
    return right * rate(&chances->named[chances->n_ranks + rank]) +
           (1 - right) * rate(&chances->named[rank]);
}

void moe_lookahead_note_expert(moe_lookahead_chances *chances, uint32_t rank, bool right, bool used)
{
    note(&chances->named[(right ? chances->n_ranks : 0) + rank], used);
}
