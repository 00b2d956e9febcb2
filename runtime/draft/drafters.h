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

/* Drafts up to d->max_depth, or nothing with length 0. What was drafted is also kept as a silent
 * draft, whose tokens are compared with those that then come, so that the length controller knows
 * what drafts are worth that are not verified. */
int moe_draft_ngram(const moe_speculation *speculation, moe_session_draft *const *drafts, size_t n,
                    uint32_t length, moe_error *err);
/* speculation->is_silent: its passes are all that it costs, and it foresees nothing. */
int moe_draft_self(moe_speculation *speculation, moe_session_draft *const *drafts, size_t n,
                   moe_error *err);
/* Whether tokens of a silent draft have still to come. */
bool moe_silent_is_pending(const moe_silent_draft *silent, const moe_draft_line *line);
/* Copies the session's tree to its silent draft. */
void moe_silent_note(moe_session_draft *draft, moe_drafter drafter);
/* Likewise; of the tree the root alone remains. */
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

/* Call with the draft's logits after a node, from whatever model: adds the node's children, and
 * puts those that are worth continuing from on the frontier. */
int moe_draft_expand(const moe_speculation *speculation, moe_session_draft *draft, uint32_t node,
                     const float *logits, moe_error *err);
/* True if expanding the session's nodes only needs the greatest logit, which may then be passed in
 * place of the logits. Its share is summed in floats, the probabilities of logits in doubles. */
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
/* Likewise for drafts whose number of sequences is known only now: the fewer, the dearer a row. */
void moe_draft_cut_together(const moe_speculation *speculation, moe_session_draft *const *drafts,
                            size_t n);

#endif
