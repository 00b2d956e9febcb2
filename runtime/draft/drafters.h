/* SPDX-License-Identifier: MIT */
/* The drafters, and the functions that grow their trees. A separate draft model (parts.run_model)
 * also uses the latter. */
#ifndef MOE_DRAFT_DRAFTERS_H
#define MOE_DRAFT_DRAFTERS_H

#include "runtime/draft/speculation.h"

/* Nodes of a level of a branching tree. */
#define MOE_DRAFT_FRONTIER 16u

/* True for a token that ends a generation, after which nothing is drafted. */
static inline bool moe_draft_is_end(const moe_speculation *speculation, int32_t token)
{
    const moe_tokenizer *tokenizer = speculation->parts.tokenizer;
    return tokenizer != NULL && moe_tokenizer_is_end(tokenizer, token);
}

/* Drafts up to d->max_depth, or nothing with length 0. Also keeps the tokens as a silent draft:
 * they are compared with the tokens that are then written, so the length controller learns what
 * unverified drafts are worth. */
int moe_draft_ngram(const moe_speculation *speculation, moe_session_draft *const *drafts, size_t n,
                    uint32_t length, moe_error *err);
/* If speculation->is_silent, it costs only its own passes and foresees nothing. */
int moe_draft_self(moe_speculation *speculation, moe_session_draft *const *drafts, size_t n,
                   moe_error *err);
/* Whether a silent draft has tokens that are not compared yet. */
bool moe_silent_is_pending(const moe_silent_draft *silent, const moe_draft_line *line);
/* Copies the session's tree to its silent draft. */
void moe_silent_note(moe_session_draft *draft, moe_drafter drafter);
/* Moves the session's tree to its silent draft; the tree keeps only its root. */
void moe_silent_keep(moe_session_draft *draft, moe_drafter drafter);
/* Compares the timeline's token at `position` with the silent drafts. */
void moe_silent_note_token(const moe_speculation *speculation, moe_session_draft *draft,
                           uint32_t position, int32_t token);

/* Computes where the rows of the tree's nodes are stored. */
void moe_speculation_place(moe_session_draft *draft);

/* The token that the session's sampler would choose after its timeline and `depth` more tokens,
 * which are in the timeline's array, if these logits were the model's. */
int32_t moe_draft_predict_token(const moe_speculation *speculation, const moe_session_draft *draft,
                                uint32_t depth, const float *logits, float *confidence);

/* Call with a draft's logits after a node, from any model. Adds the node's children, and puts the
 * children that are worth continuing from on the frontier. */
int moe_draft_expand(const moe_speculation *speculation, moe_session_draft *draft, uint32_t node,
                     const float *logits, moe_error *err);
/* True if expanding the session's nodes needs only the greatest logit; the caller may then pass
 * that alone. Its probability is summed in floats, those of all logits in doubles. */
bool moe_draft_takes_greatest(const moe_speculation *speculation, const moe_session_draft *draft);
void moe_draft_expand_greatest(const moe_speculation *speculation, moe_session_draft *draft,
                               uint32_t node, const moe_greatest *greatest);
/* Makes the root the frontier, before the first level. */
void moe_draft_begin_frontier(moe_session_draft *draft);
/* Keeps the surest few of the frontier, surest first. */
void moe_draft_narrow_frontier(moe_session_draft *draft, uint32_t most);
/* Removes deeper nodes; returns how many. */
uint32_t moe_draft_cut_depth(moe_session_draft *draft, uint32_t depth);
/* After the last level: removes nodes that are not worth their row, but never from a drawn chain.
 * fetch_cost (may be NULL): [depth + 1], of chains. */
void moe_draft_cut(const moe_speculation *speculation, moe_session_draft *draft,
                   const double *fetch_cost);
/* Like moe_draft_cut() for drafts whose number of sequences is known only now: the fewer sequences,
 * the more a row costs. */
void moe_draft_cut_together(const moe_speculation *speculation, moe_session_draft *const *drafts,
                            size_t n);

#endif
