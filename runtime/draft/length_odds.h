/* SPDX-License-Identifier: MIT */
/* How likely drafted tokens are to be accepted: fading counts by depth and by the drafter's
 * confidence. A cell's prior is what all depths showed of that confidence; a depth's prior is the
 * depth before it. One thread at a time. */
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

/* What earlier runs have left, which this one soon outweighs, and for later runs. False: nothing
 * was seen. */
void moe_length_odds_carry(moe_length_odds *odds, const moe_draft_habit *habit);
bool moe_length_odds_keep(const moe_length_odds *odds, moe_draft_habit *habit);

/* The probability that a token of this depth (from 1) and confidence is accepted if those before it
 * are; `prior`: while nothing was seen of that confidence. */
double moe_length_odds_of(const moe_length_odds *odds, uint32_t depth, float confidence,
                          double prior);
/* The same of any token of this depth; `first` is the prior of the first. */
double moe_length_odds_at(const moe_length_odds *odds, uint32_t depth, double first);
/* How many tokens of this depth were seen, fading. */
double moe_length_odds_seen(const moe_length_odds *odds, uint32_t depth);
/* Notes whether a token was accepted, those before it having been. */
void moe_length_odds_note(moe_length_odds *odds, uint32_t depth, float confidence, bool accepted);
/* Forgets a little of what depths have shown: nothing was drafted. */
void moe_length_odds_fade(moe_length_odds *odds);

#endif
