/* SPDX-License-Identifier: MIT */
/* The vocabulary's tokens as a trie of their bytes. The trie is stored as a sorted list: each token
 * says how many bytes it shares with the token before it. Walking through the list is a depth-first
 * walk through the trie. */
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

/* A branch of the trie: a run of tokens, from one token up to `end`, that begin with the same
 * bytes. Describes the characters that follow those shared bytes. A token's last character may be
 * incomplete. */
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
    /* For each token, the bytes that it does not share with the token before it. They stand one
     * behind the other, so that a walk reads memory in order. */
    uint8_t *rests;
    uint32_t *rest_ends; /* [n] in rests */
    /* [n] Entry i is the branch that begins at token i: the tokens that share one byte more than
     * token i shares with the token before it. */
    struct moe_token_branch *branches;
    uint8_t *n_chars; /* [n] bytes that begin characters */
    int32_t *ends;    /* [n_ends] tokens that end a text */
    uint32_t n_ends;
} moe_token_keys;

/* The longest key of a control token, in bytes (see moe_token_key()). */
enum { MOE_TOKEN_CONTROL_KEY = 4 };

/* How many steps the matcher may take for one mask. A grammar that needs more is rejected as too
 * ambiguous. */
#define MOE_TOKEN_MASK_VISITS (UINT64_C(1) << 24)

/* Returns an upper bound of the keys' memory in bytes. Sets *sorting to the memory that is needed
 * only while they are sorted. */
uint64_t moe_token_keys_bytes(const moe_token_source *source, uint64_t *sorting);
int moe_token_keys_create(moe_token_keys **out, const moe_token_source *source, moe_error *err);
void moe_token_keys_free(moe_token_keys **keys);
/* Returns the bytes by which grammars know the token. If it is a control token, writes them to
 * `control`. */
const uint8_t *moe_token_key(const moe_token_source *source, int32_t token,
                             uint8_t control[MOE_TOKEN_CONTROL_KEY], size_t *size);

/* Sets the bit of each token that may come at the state; bits[(n_vocab + 63) / 64]. Returns true if
 * the matcher's tables were emptied during this; *state then has a new number. */
bool moe_token_keys_allow(const moe_token_keys *keys, moe_matcher *matcher, uint32_t *state,
                          uint64_t *bits);

#endif
