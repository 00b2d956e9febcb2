/* SPDX-License-Identifier: MIT */
/* Lossy: a resident buddy replaces a missing expert (BuddyMoE, section 4): the method, and the mode
 * of an engine that uses it. */
#ifndef MOE_LOSSY_BUDDY_H
#define MOE_LOSSY_BUDDY_H

#include <moe/lossy_modes.h>
#include <moe/types.h>

#include "runtime/base/random.h"
#include "runtime/device/device.h"
#include "runtime/pass/pass.h"
#include "runtime/pass/route_edit.h"
#include "runtime/sidecar/calibration.h"

/* The buddies of each expert of one layer, in descending order of q. */
typedef struct moe_buddy_list {
    uint32_t n_expert;
    uint32_t max;      /* K_max */
    uint32_t *count;   /* [n_expert], 1..max */
    uint16_t *buddies; /* [n_expert][max] */
    float *q;          /* [n_expert][max] */
} moe_buddy_list;

/* coactivation: [n_expert][n_expert] M(i, j), finite and not negative, the diagonal unused. epsilon
 * (1) is added to each; q_{j|i} is normalised. A list is the shortest prefix with a sum of at least
 * alpha in (0, 1], of 1..max, ties to the lower id. list->max is the lesser of max and n_expert -
 * 1. MOE_ERR_ARGUMENT for input out of range; on failure the list is empty. */
int moe_buddy_list_build(moe_buddy_list *list, const float *coactivation, uint32_t n_expert,
                         float alpha, uint32_t max, float epsilon, moe_error *err);
void moe_buddy_list_free(moe_buddy_list *list);

typedef enum moe_buddy_weight { MOE_BUDDY_INHERIT, MOE_BUDDY_OWN } moe_buddy_weight;

typedef struct moe_buddy_options {
    uint32_t max_replaced;     /* rho: most replacements for a token in a layer; 0: changes
                                * nothing */
    uint32_t search;           /* H: ranks of the list that are considered; 0: all */
    float tae_threshold;       /* of this layer: no replacement at or below this entropy; < 0: no
                                * gate */
    float margin_threshold;    /* no replacement if p_max - p_2nd is this or more; > 1: no gate */
    float tae_temperature;     /* 0.8..1.2; 1 */
    float residency_threshold; /* beta: no replacement in a layer whose share of missing experts
                                * among the distinct experts requested is beta or more; 1: never
                                * bypass */
    float novelty; /* eta of the score, on log p standardised over the row's experts; 0: off */
    /* kappa: the score of a buddy that is h hops away is multiplied by 1 - kappa h. With 1, only
     * resident buddies are used. */
    float hop_penalty;
    const uint8_t *hops; /* [n_expert]: 0 resident, 1 in host memory behind a link, 2 further away;
                          * NULL: 0 and 2 */
    /* The score of a buddy that the row uses already is multiplied by this. With 0 it is not
     * used. */
    float reuse;
    moe_buddy_weight weight;
    bool drop_unserved; /* drops a missing expert without a buddy; otherwise it is fetched */
    bool random;        /* baseline: any resident expert, uniformly */
    moe_random *random_source;
} moe_buddy_options;

typedef struct moe_buddy_stats {
    uint64_t n_requested; /* (row, rank) seen */
    uint64_t n_missing;   /* ... not resident */
    uint64_t n_replaced;
    uint64_t n_reused; /* ... replaced by an expert that the row already had */
    uint64_t n_dropped;
    uint64_t n_gated;    /* rows with a missing expert that a gate left unchanged */
    uint64_t n_bypassed; /* layers that the residency gate left unchanged */
    uint64_t n_unserved; /* missing experts that might be replaced, but had no buddy */
} moe_buddy_stats;

void moe_buddy_options_init(moe_buddy_options *options);
/* Counts the distinct experts that the rows request, and how many of them are not resident. */
void moe_buddy_count(const moe_route_edit *edit, uint32_t *n_requested, uint32_t *n_missing);
/* Replaces missing experts row by row, rank by rank (algorithm 1).
 *
 * A buddy must be nearer than the missing expert (hops), and takes its rank. If there are several,
 * the one with the highest score wins, and of equal scores the first on the list. Without novelty,
 * hops other than 0 and 2, and reuse, this is the first on the list. A score below 0 (novelty) is
 * divided by a penalty, not multiplied, so that the penalty makes it worse, too.
 *
 * If the row has the buddy already (reuse), the missing expert's rank is dropped; with INHERIT the
 * buddy's rank gets that rank's weight as well. With OWN, a row with a replacement gets the weights
 * that the model's rule gives its new experts.
 *
 * Gates look at the unedited row; for a row with one pick, the margin is taken over all experts.
 * The caller still fetches missing experts beyond max_replaced and those of rows that a gate leaves
 * unchanged: n_missing - n_replaced - n_dropped in all.
 *
 * list may be NULL for the random baseline. Adds to stats. */
void moe_buddy_apply(const moe_buddy_list *list, const moe_buddy_options *options,
                     moe_route_edit *edit, moe_buddy_stats *stats);

/* The entropy that the gate TAE uses: -sum p log p / log k, where p are the probabilities of the
 * k >= 2 chosen experts to the power 1 / temperature, renormalised. */
float moe_routing_entropy(const float *probs, const uint32_t *experts, uint32_t k,
                          float temperature);

/* ---- The mode of an engine (buddy_mode.c) ---- */

typedef struct moe_buddies moe_buddies;

/* The parts of the engine that the mode uses. All of them must outlive it. */
typedef struct moe_buddy_parts {
    moe_runner *runner; /* with its config and path at open, complete at moe_buddies_edit() */
    const moe_tensor_map *map;
    const moe_calibration *calibration; /* NULL: opening fails, and says what is missing */
} moe_buddy_parts;

int moe_buddies_check(const moe_lossy_options *options, moe_error *err);
int moe_buddies_open(moe_buddies **out, const moe_buddy_parts *parts,
                     const moe_engine_options *options, moe_error *err);
void moe_buddies_close(moe_buddies **buddies);
void moe_buddies_edit(moe_buddies *buddies, moe_route_edit *edit);
const moe_buddy_stats *moe_buddies_get_stats(const moe_buddies *buddies);
/* moe_buddies_keep_stats() remembers the counts; the second function returns to the remembered
 * counts. */
void moe_buddies_keep_stats(moe_buddies *buddies);
void moe_buddies_forget_stats(moe_buddies *buddies);
/* The first function returns whether a moe_substitution can express all that these buddies do. The
 * second returns a layer's substitution, with lists in host memory. */
bool moe_buddies_are_substitution(const moe_buddies *buddies);
moe_substitution moe_buddies_substitution(const moe_buddies *buddies, uint32_t layer);

#endif
