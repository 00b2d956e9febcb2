/* SPDX-License-Identifier: MIT */
#include "runtime/draft/length_odds.h"

/* factor of the old counts at each new token: about 50 tokens are remembered */
#define DECAY          0.98
#define REST_DECAY     0.96
#define PRIOR_STRENGTH 4.0
#define CARRIED        16.0 /* in each cell, earlier runs count as at most this many tokens */

static uint32_t bucket_of(float confidence)
{
    uint32_t b = (uint32_t)(confidence * MOE_HABIT_BUCKETS);
    return b < MOE_HABIT_BUCKETS ? b : MOE_HABIT_BUCKETS - 1;
}

static uint32_t index_of(uint32_t depth)
{
    return depth == 0 ? 0 : depth > MOE_HABIT_DEPTHS ? MOE_HABIT_DEPTHS - 1 : depth - 1;
}

static double posterior(const moe_acceptance_count *count, double prior)
{
    return (count->accepted + PRIOR_STRENGTH * prior) / (count->seen + PRIOR_STRENGTH);
}

static void add(moe_acceptance_count *count, bool accepted)
{
    count->seen = count->seen * DECAY + 1;
    count->accepted = count->accepted * DECAY + accepted;
}

static moe_acceptance_count carried(const moe_draft_tally *tally)
{
    double share = tally->seen > CARRIED ? CARRIED / (double)tally->seen : 1;
    return (moe_acceptance_count){share * (double)tally->seen, share * (double)tally->accepted};
}

static moe_draft_tally tally_of(const moe_acceptance_count *count)
{
    return (moe_draft_tally){(float)count->seen, (float)count->accepted};
}

void moe_length_odds_carry(moe_length_odds *o, const moe_draft_habit *habit)
{
    for (uint32_t d = 0; d < MOE_HABIT_DEPTHS; d++) {
        o->depths[d] = carried(&habit->depths[d]);
        for (uint32_t b = 0; b < MOE_HABIT_BUCKETS; b++) {
            o->cells[d][b] = carried(&habit->cells[d][b]);
        }
    }
    for (uint32_t b = 0; b < MOE_HABIT_BUCKETS; b++) {
        o->buckets[b] = carried(&habit->buckets[b]);
    }
}

bool moe_length_odds_keep(const moe_length_odds *o, moe_draft_habit *habit)
{
    for (uint32_t d = 0; d < MOE_HABIT_DEPTHS; d++) {
        habit->depths[d] = tally_of(&o->depths[d]);
        for (uint32_t b = 0; b < MOE_HABIT_BUCKETS; b++) {
            habit->cells[d][b] = tally_of(&o->cells[d][b]);
        }
    }
    for (uint32_t b = 0; b < MOE_HABIT_BUCKETS; b++) {
        habit->buckets[b] = tally_of(&o->buckets[b]);
    }
    return o->depths[0].seen > 0;
}

double moe_length_odds_of(const moe_length_odds *o, uint32_t depth, float confidence, double prior)
{
    uint32_t b = bucket_of(confidence);
    return posterior(&o->cells[index_of(depth)][b], posterior(&o->buckets[b], prior));
}

double moe_length_odds_at(const moe_length_odds *o, uint32_t depth, double first)
{
    double p = first;
    for (uint32_t i = 0; i <= index_of(depth); i++) {
        p = posterior(&o->depths[i], p);
    }
    return p;
}

double moe_length_odds_seen(const moe_length_odds *o, uint32_t depth)
{
    return o->depths[index_of(depth)].seen;
}

void moe_length_odds_note(moe_length_odds *o, uint32_t depth, float confidence, bool accepted)
{
    uint32_t b = bucket_of(confidence);
    add(&o->cells[index_of(depth)][b], accepted);
    add(&o->buckets[b], accepted);
    add(&o->depths[index_of(depth)], accepted);
}

void moe_length_odds_fade(moe_length_odds *o)
{
    for (uint32_t d = 0; d < MOE_HABIT_DEPTHS; d++) {
        o->depths[d].seen *= REST_DECAY;
        o->depths[d].accepted *= REST_DECAY;
    }
}
