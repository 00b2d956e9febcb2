/* SPDX-License-Identifier: MIT */
/* Which drafted tokens stand. Verification walks the tree from the root: at every node the target's
 * distribution is at hand, and one of the node's children is accepted or none, in which case a
 * token of the target's own ends the walk. Lossless: what is emitted is distributed as without a
 * draft (Leviathan et al. 2023 for a chain; for several candidates, rounds of rejection without
 * replacement). */
#ifndef MOE_SPECULATE_ACCEPT_H
#define MOE_SPECULATE_ACCEPT_H

#include "runtime/base/random.h"
#include "runtime/speculate/token_tree.h"

typedef struct moe_choice {
    int32_t token;
    double p;
} moe_choice;

/* Distinct tokens; p >= 0 and not all 0, of any sum: only ratios count. Other tokens have p = 0. */
typedef struct moe_distribution {
    uint32_t n;
    moe_choice *choices;
} moe_distribution;

/* The target's own choice (its argmax, or what its sampler drew) decides: the child that has this
 * token, or MOE_NODE_NONE. The text is then that of plain decoding with the same random numbers. */
uint32_t moe_accept_exact(const moe_token_tree *tree, uint32_t node, int32_t choice);

/* Rejection sampling. target is changed (it becomes the residual). draft: the distribution that the
 * node's children were drawn from, without replacement, in their order (changed too). Every drawn
 * token must be among the children, whatever it is. NULL when
 * they were picked rather than drawn (the most likely ones, an n-gram's): each is then accepted
 * with p(x), and else p(x) becomes 0. Returns the child accepted, or MOE_NODE_NONE and in *token
 * what is emitted instead. A node without children just draws *token. */
uint32_t moe_accept_rejection(const moe_token_tree *tree, uint32_t node, moe_distribution *target,
                              moe_distribution *draft, moe_random *random, int32_t *token);

/* Copies into *out, whose array holds *capacity choices and grows; released with free(). */
int moe_distribution_copy(moe_distribution *out, uint32_t *capacity, const moe_distribution *from,
                          moe_error *err);

/* One draw; the distribution is not changed. */
int32_t moe_distribution_draw(const moe_distribution *distribution, moe_random *random);
/* One draw that two distributions share: of each token the number makes an exponential variate, and
 * the least variate / p wins, so that with a random number a token has its probability, and with
 * the same number distributions of total variation distance d choose the same one with probability
 * (1 - d) / (1 + d) at least (Daliri, Musco and Suresh 2024, section 3). The number and the
 * distribution decide, not the order of choices. */
int32_t moe_distribution_race(const moe_distribution *distribution, uint64_t number);
/* n distinct tokens drawn without replacement, in order; fewer when fewer have p > 0. Returns how
 * many; q[i]: the probability that tokens[i] had in its draw. distribution is not changed. */
uint32_t moe_distribution_draw_distinct(const moe_distribution *distribution, uint32_t n,
                                        moe_random *random, int32_t *tokens, float *q);

#endif
