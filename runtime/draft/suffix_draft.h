/* SPDX-License-Identifier: MIT */
/* Drafts from the text itself: from what followed earlier occurrences of the timeline's longest
 * suffix, in prompt or output. Reads no weight. */
#ifndef MOE_DRAFT_SUFFIX_DRAFT_H
#define MOE_DRAFT_SUFFIX_DRAFT_H

#include "runtime/draft/token_tree.h"

/* The index of one timeline. */
typedef struct moe_suffix_index moe_suffix_index;

int moe_suffix_index_create(moe_suffix_index **out, moe_error *err);
void moe_suffix_index_free(moe_suffix_index **index);
/* Updates the index to tokens[0..n). It only looks at new tokens: amortised O(1) a token. The
 * tokens that the index covers already must be unchanged (code that changes the timeline calls
 * moe_suffix_index_cut() first). On failure the index is empty. */
int moe_suffix_index_update(moe_suffix_index *index, const int32_t *tokens, uint32_t n,
                            moe_error *err);
/* Call when the timeline was cut to n tokens, or changed from there on. */
void moe_suffix_index_cut(moe_suffix_index *index, uint32_t n);

typedef struct moe_suffix_options {
    uint32_t min_match; /* tokens that must have occurred before; 0: 2 */
    uint32_t max_match; /* longest match considered; 0: 32 */
    uint32_t max_depth; /* tokens after the node drafted from */
    uint32_t max_nodes; /* most nodes to add; more than max_depth: several continuations, by
                         * frequency */
    uint32_t drafter;   /* moe_tree_node.drafter of the added nodes */
} moe_suffix_options;

/* Adds continuations after `node` (whose path continues the timeline; the root is the timeline's
 * last token) and returns how many nodes were added. q estimates how likely the token is, given its
 * parent: the share of the matched suffix's occurrences that continued so, less if they are few or
 * the match is short. Deterministic: longest match first, then the more frequent, then the more
 * recent continuation. */
uint32_t moe_suffix_propose(const moe_suffix_index *index, const moe_suffix_options *options,
                            uint32_t node, moe_token_tree *tree);
/* How many tokens of the timeline's end the best proposal matched; 0: none. */
uint32_t moe_suffix_match_length(const moe_suffix_index *index, const moe_suffix_options *options);

#endif
