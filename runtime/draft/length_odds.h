/* SPDX-License-Identifier: MIT */
/* Estimates how likely drafted tokens are to be accepted, by counting accepted tokens by depth
 * and by the drafter's confidence. Older tokens count less. A cell with few counts leans on the
 * result of all depths at the same confidence; a depth with few counts leans on the depth before
 * it. Not thread-safe. */
#ifndef MOE_DRAFT_LENGTH_ODDS_H
#define MOE_DRAFT_LENGTH_ODDS_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/sidecar/draft_habits.h"

typedef struct moe_acceptance_count {
    double seen, accepted;
} moe_acceptance_count;

typedef struct moe_length_odds {
    moe_acceptance_count cells[MOE_HABIT_DEPTHS][MOE_HABIT_BUCKETS];
    moe_acceptance_count buckets[MOE_HABIT_BUCKETS];
    moe_acceptance_count depths[MOE_HABIT_DEPTHS];
} moe_length_odds;

/* moe_length_odds_carry() starts with the counts of earlier runs, which this run's counts soon
 * outweigh. moe_length_odds_keep() hands the counts to later runs; false: nothing was counted. */
void moe_length_odds_carry(moe_length_odds *odds, const moe_draft_habit *habit);
bool moe_length_odds_keep(const moe_length_odds *odds, moe_draft_habit *habit);

/* Returns the probability that a token of this depth (1: the first) and confidence is accepted if
 * the tokens before it are. Returns `prior` as long as no token of that confidence was counted. */
double moe_length_odds_of(const moe_length_odds *odds, uint32_t depth, float confidence,
                          double prior);
/* Does the same for a token of any confidence. `first` is the prior for depth 1. */
double moe_length_odds_at(const moe_length_odds *odds, uint32_t depth, double first);
/* Returns how many tokens of this depth were counted; older ones count less. */
double moe_length_odds_seen(const moe_length_odds *odds, uint32_t depth);
/* Counts a token whose predecessors were all accepted. */
void moe_length_odds_note(moe_length_odds *odds, uint32_t depth, float confidence, bool accepted);
/* Lets all counts of depths fade a little. Call it for a step without drafts. */
void moe_length_odds_fade(moe_length_odds *odds);

#endif
