/* SPDX-License-Identifier: MIT */
/* Drafts from the text itself, prompt and output: looks for earlier occurrences of the longest
 * possible end of the timeline, and proposes what followed them. Needs no pass of a model. */
#ifndef MOE_DRAFT_SUFFIX_DRAFT_H
#define MOE_DRAFT_SUFFIX_DRAFT_H

#include "runtime/draft/token_tree.h"

/* The index of one timeline. */
typedef struct moe_suffix_index moe_suffix_index;

int moe_suffix_index_create(moe_suffix_index **out, moe_error *err);
void moe_suffix_index_free(moe_suffix_index **index);
/* Updates the index to the timeline tokens[0..n). Only looks at new tokens: amortised O(1) for
 * each. The tokens that are in the index already must not have changed; call
 * moe_suffix_index_cut() before changing them. On failure the index is empty. */
int moe_suffix_index_update(moe_suffix_index *index, const int32_t *tokens, uint32_t n,
                            moe_error *err);
/* Call when the timeline was cut to n tokens, or when its tokens from number n on have changed. */
void moe_suffix_index_cut(moe_suffix_index *index, uint32_t n);

typedef struct moe_suffix_options {
    uint32_t min_match; /* tokens that must have occurred before; 0: 2 */
    uint32_t max_match; /* longest match considered; 0: 32 */
    uint32_t max_depth; /* tokens after the node drafted from */
    uint32_t max_nodes; /* most nodes to add; more than max_depth: several continuations, by
                         * frequency */
    uint32_t drafter;   /* moe_tree_node.drafter of the added nodes */
} moe_suffix_options;

/* Adds continuations below `node`, whose path continues the timeline (the root is the timeline's
 * last token). Returns how many nodes were added. A node's q estimates the probability of its
 * token, given its parent: the share of occurrences that continued with it, reduced if they are
 * few or the match is short. Deterministic: prefers the longest match, then the more frequent,
 * then the more recent continuation. */
uint32_t moe_suffix_propose(const moe_suffix_index *index, const moe_suffix_options *options,
                            uint32_t node, moe_token_tree *tree);
/* Returns how many of the timeline's last tokens the best proposal matched; 0: there is no
 * match. */
uint32_t moe_suffix_match_length(const moe_suffix_index *index, const moe_suffix_options *options);

#endif
