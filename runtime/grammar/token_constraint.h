/* SPDX-License-Identifier: MIT */
/* A session's text held to a grammar: which tokens may come after those on the timeline.
 *
 * The state is a function of the timeline's tokens, so drafted tokens are tried and taken back by
 * asking with another timeline: what the two have in common is kept. */
#ifndef MOE_GRAMMAR_TOKEN_CONSTRAINT_H
#define MOE_GRAMMAR_TOKEN_CONSTRAINT_H

#include "runtime/grammar/token_keys.h"

enum { MOE_CONSTRAINT_MASKS = 8 };

typedef struct moe_token_constraint {
    moe_grammar *grammar; /* held */
    const moe_token_keys *keys;
    moe_matcher matcher;
    size_t start; /* of the text on the timeline */
    bool failed;
    /* The text so far, and the state behind each of its tokens; states before valid_from are void.
     */
    int32_t *tokens;
    uint32_t *states;
    size_t n, capacity, valid_from;
    uint32_t first_state; /* before the text; void if valid_from > 0 */
    struct {
        uint32_t state; /* 0: none */
        uint64_t used;
        uint64_t *bits;
    } masks[MOE_CONSTRAINT_MASKS];
    uint64_t clock;
} moe_token_constraint;

/* The most memory that one takes, besides 8 bytes for a token of its text. */
uint64_t moe_token_constraint_bytes(uint32_t n_vocab);
int moe_token_constraint_create(moe_token_constraint **out, moe_grammar *grammar,
                                const moe_token_keys *keys, size_t start, moe_error *err);
void moe_token_constraint_free(moe_token_constraint **constraint);

/* The bits of the tokens that may come after the timeline, never all 0 (if the vocabulary has a
 * token that ends a text); valid until the next call. */
const uint64_t *moe_token_constraint_mask(moe_token_constraint *constraint, const int32_t *timeline,
                                          size_t n);

#endif
