/* SPDX-License-Identifier: MIT */
#include "runtime/grammar/token_constraint.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

static size_t n_words(const moe_token_constraint *c)
{
    return (c->keys->source.n_vocab + 63) / 64;
}

uint64_t moe_token_constraint_bytes(uint32_t n_vocab)
{
    const uint64_t tables = MOE_MATCH_MOST_STATES * (sizeof(moe_match_state) + 512 + 8) +
                            MOE_MATCH_MOST_PLACES * sizeof(moe_match_place) +
                            MOE_MATCH_MOST_STACKS * 16 +
                            MOE_MATCH_MOST_VISITS * (2 * sizeof(moe_match_place) + 8);
    return sizeof(moe_token_constraint) + tables + MOE_CONSTRAINT_MASKS * (n_vocab / 8 + 8);
}

int moe_token_constraint_create(moe_token_constraint **out, moe_grammar *grammar,
                                const moe_token_keys *keys, size_t start, moe_error *err)
{
    moe_token_constraint *c = moe_calloc(1, sizeof *c);
    *out = c;
    if (c == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for a grammar");
    }
    c->grammar = moe_grammar_hold(grammar);
    c->keys = keys;
    c->start = start;
    int status = moe_matcher_init(&c->matcher, grammar, err);
    for (uint32_t i = 0; i < MOE_CONSTRAINT_MASKS && status == MOE_OK; i++) {
        c->masks[i].bits = moe_calloc(n_words(c), sizeof *c->masks[i].bits);
        status = c->masks[i].bits != NULL
                     ? MOE_OK
                     : moe_fail(err, MOE_ERR_MEMORY, "no memory for a grammar");
    }
    if (status != MOE_OK) {
        moe_token_constraint_free(out);
        return status;
    }
    c->first_state = moe_matcher_start(&c->matcher);
    return MOE_OK;
}

void moe_token_constraint_free(moe_token_constraint **constraint)
{
    moe_token_constraint *c = *constraint;
    if (c == NULL) {
        return;
    }
    for (uint32_t i = 0; i < MOE_CONSTRAINT_MASKS; i++) {
        free(c->masks[i].bits);
    }
    if (c->matcher.grammar != NULL) {
        moe_matcher_free(&c->matcher);
    }
    moe_grammar_close(&c->grammar);
    free(c->tokens);
    free(c->states);
    free(c);
    *constraint = NULL;
}

static bool is_end(const moe_token_constraint *c, int32_t token)
{
    for (uint32_t i = 0; i < c->keys->n_ends; i++) {
        if (c->keys->ends[i] == token) {
            return true;
        }
    }
    return false;
}

static uint32_t state_of(const moe_token_constraint *c)
{
    return c->n == 0 ? c->first_state : c->states[c->n - 1];
}

/* Call this after the matcher emptied its tables: all states are invalid except the one behind the
 * last token, which now has this number. */
static void drop_states(moe_token_constraint *c, uint32_t state)
{
    *(c->n == 0 ? &c->first_state : &c->states[c->n - 1]) = state;
    c->valid_from = c->n;
    for (uint32_t i = 0; i < MOE_CONSTRAINT_MASKS; i++) {
        c->masks[i].state = 0;
    }
}

/* Advances the state by one token. False: memory is short. */
static bool read_token(moe_token_constraint *c, int32_t token)
{
    if (c->n == c->capacity) {
        size_t capacity = c->capacity * 2 + 256;
        int32_t *tokens = moe_realloc_array(c->tokens, capacity, sizeof *tokens);
        c->tokens = tokens != NULL ? tokens : c->tokens;
        uint32_t *states = moe_realloc_array(c->states, capacity, sizeof *states);
        c->states = states != NULL ? states : c->states;
        if (tokens == NULL || states == NULL) {
            return false;
        }
        c->capacity = capacity;
    }
    uint32_t state = state_of(c);
    if (moe_matcher_tidy(&c->matcher, &state)) {
        drop_states(c, state);
    }
    uint8_t control[MOE_TOKEN_CONTROL_KEY];
    size_t size;
    const uint8_t *key = moe_token_key(&c->keys->source, token, control, &size);
    /* A token that ends the text may come when the text is complete. It leaves the state
     * unchanged. */
    bool ends = is_end(c, token) && moe_matcher_is_complete(&c->matcher, state);
    for (size_t i = 0; i < size && !ends; i++) {
        state = moe_matcher_step(&c->matcher, state, key[i]);
    }
    c->tokens[c->n] = token;
    c->states[c->n++] = state;
    return true;
}

/* Brings the state to the end of the timeline: keeps the part that the timeline shares with the
 * tokens read so far, and reads the rest. False: the grammar does not allow the timeline, or memory
 * is short. */
static bool follow(moe_token_constraint *c, const int32_t *timeline, size_t n)
{
    size_t n_text = n > c->start ? n - c->start : 0;
    size_t same = 0;
    while (same < c->n && same < n_text && c->tokens[same] == timeline[c->start + same]) {
        same++;
    }
    if (same < c->n && same < c->valid_from) {
        /* The matcher has dropped the states that we would go back to, so read the timeline from
         * its beginning. */
        c->first_state = moe_matcher_start(&c->matcher);
        c->valid_from = 0;
        same = 0;
    }
    c->n = same;
    for (size_t i = same; i < n_text; i++) {
        if (!read_token(c, timeline[c->start + i])) {
            return false;
        }
    }
    return state_of(c) != MOE_MATCH_DEAD;
}

static void allow_ends(const moe_token_constraint *c, uint64_t *bits)
{
    for (uint32_t i = 0; i < c->keys->n_ends; i++) {
        bits[c->keys->ends[i] / 64] |= UINT64_C(1) << (c->keys->ends[i] % 64);
    }
}

static bool is_empty(const moe_token_constraint *c, const uint64_t *bits)
{
    for (size_t i = 0; i < n_words(c); i++) {
        if (bits[i] != 0) {
            return false;
        }
    }
    return true;
}

const uint64_t *moe_token_constraint_mask(moe_token_constraint *c, const int32_t *timeline,
                                          size_t n)
{
    uint32_t oldest = 0;
    uint32_t state = follow(c, timeline, n) ? state_of(c) : MOE_MATCH_DEAD;
    c->failed = state == MOE_MATCH_DEAD || c->matcher.exhausted;
    for (uint32_t i = 0; i < MOE_CONSTRAINT_MASKS; i++) {
        if (c->masks[i].state == state) {
            c->masks[i].used = ++c->clock;
            return c->masks[i].bits;
        }
        oldest = c->masks[i].used < c->masks[oldest].used ? i : oldest;
    }
    uint64_t *bits = c->masks[oldest].bits;
    memset(bits, 0, n_words(c) * sizeof *bits);
    if (!c->failed) {
        if (moe_token_keys_allow(c->keys, &c->matcher, &state, bits)) {
            drop_states(c, state);
        }
        c->failed = c->matcher.exhausted;
    }
    if (c->failed) {
        memset(bits, 0, n_words(c) * sizeof *bits);
        state = MOE_MATCH_DEAD;
    }
    if (moe_matcher_is_complete(&c->matcher, state) || is_empty(c, bits)) {
        allow_ends(c, bits);
    }
    c->masks[oldest].state = state;
    c->masks[oldest].used = ++c->clock;
    return bits;
}
