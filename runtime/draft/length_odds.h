/* SPDX-License-Identifier: MIT */
/* How likely drafted tokens are to be accepted: counts by depth and by the drafter's confidence, in
 * which older tokens count less. A cell's prior is the result of all depths at that confidence; a
 * depth's prior is the depth before it. One thread at a time. */
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

/* carry() begins with the counts of earlier runs, which this run's counts soon outweigh. keep()
 * gives the counts to later runs; false: nothing was seen. */
void moe_length_odds_carry(moe_length_odds *odds, const moe_draft_habit *habit);
bool moe_length_odds_keep(const moe_length_odds *odds, moe_draft_habit *habit);

/* The probability that a token of this depth (from 1) and confidence is accepted if the tokens
 * before it are. `prior`: returned while no token of that confidence was seen. */
double moe_length_odds_of(const moe_length_odds *odds, uint32_t depth, float confidence,
                          double prior);
/* The same for a token of this depth with any confidence; `first` is the prior at depth 1. */
double moe_length_odds_at(const moe_length_odds *odds, uint32_t depth, double first);
/* How many tokens of this depth were seen; earlier ones count less. */
double moe_length_odds_seen(const moe_length_odds *odds, uint32_t depth);
/* Notes whether a token was accepted after all those before it had been accepted. */
void moe_length_odds_note(moe_length_odds *odds, uint32_t depth, float confidence, bool accepted);
/* Forgets a little of what depths have shown, for a step in which nothing was drafted. */
void moe_length_odds_fade(moe_length_odds *odds);

#endif
