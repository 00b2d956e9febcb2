/* SPDX-License-Identifier: MIT */
/* The tokens of a vocabulary as a trie of their bytes, in the form of a sorted list: each token
 * has how many bytes it shares with the one before it. A walk over the list is a walk through the
 * trie by depth first. */
#ifndef MOE_GRAMMAR_TOKEN_KEYS_H
#define MOE_GRAMMAR_TOKEN_KEYS_H

#include "runtime/grammar/grammar_matcher.h"

typedef struct moe_token_text {
    const char *data; /* lives as long as the source; a control token's is ignored */
    size_t size;
    bool is_control;
    bool is_end;
} moe_token_text;

typedef struct moe_token_source {
    uint32_t n_vocab;
    moe_token_text (*text)(const void *user, int32_t token);
    const void *user;
} moe_token_source;

/* A branch of the trie: the tokens up to `end` have its bytes. Behind those that the first of them
 * shares with the one before it they have characters of these kinds, of one at most a beginning. */
typedef struct moe_token_branch {
    uint32_t end;
    uint16_t kinds;    /* bits by moe_char_kind; MOE_TOKEN_ODD: there are other bytes, too */
    uint8_t n_longest; /* the most characters */
} moe_token_branch;

#define MOE_TOKEN_ODD (1u << MOE_CHAR_KINDS)

typedef struct moe_token_keys {
    moe_token_source source;
    uint32_t n;      /* tokens that have bytes */
    int32_t *order;  /* [n] by their bytes */
    uint8_t *shared; /* [n] with the one before; 255: that many or more */
    /* The bytes that each token does not share with the one before it, one token after the other,
     * so that a walk reads memory in order. */
    uint8_t *rests;
    uint32_t *rest_ends; /* [n] in rests */
    /* Of the branch that a token begins, [n]: the bytes that it shares, and one more. */
    struct moe_token_branch *branches;
    uint8_t *n_chars; /* [n] bytes that begin characters */
    int32_t *ends;    /* [n_ends] tokens that end a text */
    uint32_t n_ends;
} moe_token_keys;

/* The most bytes that moe_token_key() writes for control tokens. */
enum { MOE_TOKEN_CONTROL_KEY = 4 };

/* The most visits of the matcher for one mask. A grammar that needs more is too ambiguous. */
#define MOE_TOKEN_MASK_VISITS (UINT64_C(1) << 24)

/* The most bytes that the keys take, with the memory for sorting them. */
uint64_t moe_token_keys_bytes(const moe_token_source *source, uint64_t *sorting);
int moe_token_keys_create(moe_token_keys **out, const moe_token_source *source, moe_error *err);
void moe_token_keys_free(moe_token_keys **keys);
/* Returns the bytes that stand for the token in grammars. Writes those of a control token into
 * control. */
const uint8_t *moe_token_key(const moe_token_source *source, int32_t token,
                             uint8_t control[MOE_TOKEN_CONTROL_KEY], size_t *size);

/* Sets the bits of the tokens that may come at the state: bits[(n_vocab + 63) / 64]. True: the
 * matcher's tables were emptied on the way, and *state has a new number. */
bool moe_token_keys_allow(const moe_token_keys *keys, moe_matcher *matcher, uint32_t *state,
                          uint64_t *bits);

#endif
