/* SPDX-License-Identifier: MIT */
/* The drafters, and the functions that grow their trees. A second model that drafts
 * (parts.run_model) uses these functions, too. */
#ifndef MOE_DRAFT_DRAFTERS_H
#define MOE_DRAFT_DRAFTERS_H

#include "runtime/draft/speculation.h"

/* The largest number of nodes from which a branching tree grows in one level. */
#define MOE_DRAFT_FRONTIER 16u

/* Whether the token ends the text. Nothing is drafted after it. */
static inline bool moe_draft_is_end(const moe_speculation *speculation, int32_t token)
{
    const moe_tokenizer *tokenizer = speculation->parts.tokenizer;
    return tokenizer != NULL && moe_tokenizer_is_end(tokenizer, token);
}

/* Drafts from the session's text, up to d->max_depth tokens (length 0: nothing). Also keeps the
 * draft as a silent draft: it is compared with the tokens that the session then writes, so that
 * length control learns the value of such drafts even when they are not verified. */
int moe_draft_ngram(const moe_speculation *speculation, moe_session_draft *const *drafts, size_t n,
                    uint32_t length, moe_error *err);
/* Drafts with the model restricted to resident experts. If speculation->is_silent, the draft only
 * costs its own passes, and foresight does not use it. */
int moe_draft_self(moe_speculation *speculation, moe_session_draft *const *drafts, size_t n,
                   moe_error *err);
/* Whether some tokens of the silent draft have not been compared with the text yet. */
bool moe_silent_is_pending(const moe_silent_draft *silent, const moe_draft_line *line);
/* Copies the session's tree to its silent draft of this drafter. */
void moe_silent_note(moe_session_draft *draft, moe_drafter drafter);
/* Moves the session's tree to its silent draft of this drafter; only the tree's root remains. */
void moe_silent_keep(moe_session_draft *draft, moe_drafter drafter);
/* Compares the timeline's token at this position with the session's silent drafts. */
void moe_silent_note_token(const moe_speculation *speculation, moe_session_draft *draft,
                           uint32_t position, int32_t token);

/* Computes at which positions the keys and values of the tree's nodes are stored. */
void moe_speculation_place(moe_session_draft *draft);

/* Returns the token that the session's sampler would choose if these logits were the model's. The
 * text is the timeline and `depth` more tokens behind it in the same array. */
int32_t moe_draft_predict_token(const moe_speculation *speculation, const moe_session_draft *draft,
                                uint32_t depth, const float *logits, float *confidence);

/* Call with the draft's logits after a node; they may come from any model. Adds children to the
 * node, and puts those that the draft should continue from on the frontier. */
int moe_draft_expand(const moe_speculation *speculation, moe_session_draft *draft, uint32_t node,
                     const float *logits, moe_error *err);
/* Whether expanding the session's nodes needs only the greatest logit and its token; the caller
 * may then pass just these. (Their probability is then summed in float; that of all logits is
 * summed in double.) */
bool moe_draft_takes_greatest(const moe_speculation *speculation, const moe_session_draft *draft);
void moe_draft_expand_greatest(const moe_speculation *speculation, moe_session_draft *draft,
                               uint32_t node, const moe_greatest *greatest);
/* Sets the frontier to the root, before the first level. */
void moe_draft_begin_frontier(moe_session_draft *draft);
/* Keeps at most `most` nodes on the frontier: those with the greatest path probability, greatest
 * first. */
void moe_draft_narrow_frontier(moe_session_draft *draft, uint32_t most);
/* Removes the nodes that are deeper than `depth`. Returns how many. */
uint32_t moe_draft_cut_depth(moe_session_draft *draft, uint32_t depth);
/* Call after the last level: removes nodes that are not worth verifying, but none from a drawn
 * chain. fetch_cost: [depth + 1] for chains, the expected cost of misses by length; may be NULL. */
void moe_draft_cut(const moe_speculation *speculation, moe_session_draft *draft,
                   const double *fetch_cost);
/* Does the same for drafts whose number of sequences became known only now. A row costs more if
 * fewer sequences draft. */
void moe_draft_cut_together(const moe_speculation *speculation, moe_session_draft *const *drafts,
                            size_t n);

#endif
