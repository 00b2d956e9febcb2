/* SPDX-License-Identifier: MIT */
/* What length control has learnt about drafts, kept for the next run: how often tokens of each
 * drafter were accepted, and what its rows and passes cost, in units of the cost of one plainly
 * decoded token. In the sidecar it is the tensor `drafts`, with a row of floats for each
 * drafter. */
#ifndef MOE_SIDECAR_DRAFT_HABITS_H
#define MOE_SIDECAR_DRAFT_HABITS_H

#include <stdint.h>

#define MOE_HABIT_DRAFTERS 4u
#define MOE_HABIT_DEPTHS   16u
#define MOE_HABIT_BUCKETS  8u /* classes of a token's confidence */

/* Where missing experts come from. Costs are learnt separately for each. */
typedef enum moe_draft_tier {
    MOE_DRAFT_TIER_NONE, /* all experts are in memory */
    MOE_DRAFT_TIER_DISK,
    MOE_DRAFT_TIER_LINK, /* the link of a device */
    MOE_DRAFT_TIERS
} moe_draft_tier;

/* Sums in which older tokens count less. seen: drafted tokens whose parents were accepted;
 * accepted: those of them that were accepted themselves. */
typedef struct moe_draft_tally {
    float seen, accepted;
} moe_draft_tally;

/* Costs, in units of the cost of a plain token. n: the number of iterations that were seen; 0:
 * the other members are unknown. */
typedef struct moe_draft_costs {
    float n, row, row_fetch, pass;
} moe_draft_costs;

typedef struct moe_draft_habit {
    moe_draft_tally cells[MOE_HABIT_DEPTHS][MOE_HABIT_BUCKETS];
    moe_draft_tally depths[MOE_HABIT_DEPTHS], buckets[MOE_HABIT_BUCKETS];
    moe_draft_costs costs[MOE_DRAFT_TIERS];
} moe_draft_habit;

typedef struct moe_draft_habits {
    moe_draft_habit of[MOE_HABIT_DRAFTERS];
} moe_draft_habits;

#define MOE_HABIT_FLOATS (sizeof(moe_draft_habit) / sizeof(float))

#endif
