/* SPDX-License-Identifier: MIT */
/* Holds a session's text to a grammar: says which tokens may follow those on the timeline.
 *
 * The answer depends only on the tokens of the timeline. So to try drafted tokens, or to take them
 * back, a caller just asks with another timeline; what the two timelines share is not read
 * again. */
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
    /* The tokens read so far, and the state behind each of them. Only states from index valid_from
     * on are valid. */
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

/* The most memory that a constraint takes, in bytes. To this come 8 bytes for each token of its
 * text. */
uint64_t moe_token_constraint_bytes(uint32_t n_vocab);
int moe_token_constraint_create(moe_token_constraint **out, moe_grammar *grammar,
                                const moe_token_keys *keys, size_t start, moe_error *err);
void moe_token_constraint_free(moe_token_constraint **constraint);

/* Returns a bit for each token of the vocabulary: whether it may follow the timeline. At least one
 * bit is set if the vocabulary has a token that ends a text. The bits stay valid until the next
 * call. */
const uint64_t *moe_token_constraint_mask(moe_token_constraint *constraint, const int32_t *timeline,
                                          size_t n);

#endif
