/* SPDX-License-Identifier: MIT */
/* The drafters, and what they grow trees with. A draft model of its own (parts.run_model) uses the
 * latter, too. */
#ifndef MOE_DRAFT_DRAFTERS_H
#define MOE_DRAFT_DRAFTERS_H

#include "runtime/draft/speculation.h"

/* Nodes of a level of a branching tree. */
#define MOE_DRAFT_FRONTIER 16u

/* Ends a generation, so nothing is drafted behind it. */
static inline bool moe_draft_is_end(const moe_speculation *speculation, int32_t token)
{
    const moe_tokenizer *tokenizer = speculation->parts.tokenizer;
    return tokenizer != NULL && moe_tokenizer_is_end(tokenizer, token);
}

int moe_draft_ngram(const moe_speculation *speculation, moe_session_draft *const *drafts, size_t n,
                    moe_error *err);
/* Silent drafts cost no row: they are kept, and compared with the tokens that then come, so that
 * the length controller knows what drafts would be worth before any was paid for. */
int moe_draft_ngram_silently(const moe_speculation *speculation, moe_session_draft *const *drafts,
                             size_t n, moe_error *err);
void moe_draft_ngram_hear(const moe_speculation *speculation, moe_session_draft *draft,
                          uint32_t position, int32_t token);
int moe_draft_self(moe_speculation *speculation, moe_session_draft *const *drafts, size_t n,
                   moe_error *err);

/* The tree as it is: where the rows of its nodes are stored. */
void moe_speculation_place(moe_session_draft *draft);

/* The draft's logits after a node have come, by whatever model: adds its children, and those of
 * them that are worth going on from to the frontier. */
int moe_draft_expand(const moe_speculation *speculation, moe_session_draft *draft, uint32_t node,
                     const float *logits, moe_error *err);
/* The greatest logit is all that expanding the session's nodes looks at; then it may come in place
 * of the logits. Its share is summed in floats, the probabilities of logits in doubles. */
bool moe_draft_takes_greatest(const moe_speculation *speculation, const moe_session_draft *draft);
void moe_draft_expand_greatest(const moe_speculation *speculation, moe_session_draft *draft,
                               uint32_t node, const moe_greatest *greatest);
/* Before the first level: the root is the frontier. */
void moe_draft_begin_frontier(moe_session_draft *draft);
/* Of the frontier, the surest few stay, surest first. */
void moe_draft_narrow_frontier(moe_session_draft *draft, uint32_t most);
/* What is deeper goes; returns how many nodes. */
uint32_t moe_draft_cut_depth(moe_session_draft *draft, uint32_t depth);
/* After the last level: what is not worth its row goes; nothing of a drawn chain does. fetch_cost
 * (may be NULL): [depth + 1], of chains. */
void moe_draft_cut(const moe_speculation *speculation, moe_session_draft *draft,
                   const double *fetch_cost);

#endif
