/* SPDX-License-Identifier: MIT */
/* Drafting from the text itself: what followed the longest suffix of the timeline where it stood
 * before, in prompt or output. Reads no weight. */
#ifndef MOE_DRAFT_SUFFIX_DRAFT_H
#define MOE_DRAFT_SUFFIX_DRAFT_H

#include "runtime/draft/token_tree.h"

/* The index of one timeline. */
typedef struct moe_suffix_index moe_suffix_index;

int moe_suffix_index_create(moe_suffix_index **out, moe_error *err);
void moe_suffix_index_free(moe_suffix_index **index);
/* Makes the index be about tokens[0..n), of which it looks at those alone that are new: amortised
 * O(1) a token. What the index is about already must be the beginning of them (whoever changed it
 * called moe_suffix_index_cut() first). On failure the index is empty. */
int moe_suffix_index_update(moe_suffix_index *index, const int32_t *tokens, uint32_t n,
                            moe_error *err);
/* The timeline was cut to n tokens, or from there on changed. */
void moe_suffix_index_cut(moe_suffix_index *index, uint32_t n);

typedef struct moe_suffix_options {
    uint32_t min_match; /* tokens that must have stood before; 0: 2 */
    uint32_t max_match; /* longest that is looked at; 0: 32 */
    uint32_t max_depth; /* tokens after the node drafted from */
    uint32_t max_nodes; /* to be added; more than max_depth: several continuations, by frequency */
    uint32_t drafter;   /* moe_tree_node.drafter of what is added */
} moe_suffix_options;

/* Adds continuations after `node` (whose path continues the timeline; the root is the timeline's
 * last token) and returns how many nodes were added. q estimates how likely it is that the token
 * comes, given its parent: the share of the occurrences of the matched suffix that went on like
 * this, less where they are few or the match is short. Deterministic: longest match first, then the
 * more frequent, then the more recent continuation. */
uint32_t moe_suffix_propose(const moe_suffix_index *index, const moe_suffix_options *options,
                            uint32_t node, moe_token_tree *tree);
/* Tokens of the timeline's end that the best proposal matched; 0: none. */
uint32_t moe_suffix_match_length(const moe_suffix_index *index, const moe_suffix_options *options);

#endif
