/* SPDX-License-Identifier: MIT */
#include "runtime/grammar/token_keys.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

enum { DEEPEST = 255 };

typedef struct entry {
    const uint8_t *bytes;
    uint32_t size;
    int32_t token;
} entry;

const uint8_t *moe_token_key(const moe_token_source *source, int32_t token,
                             uint8_t control[MOE_TOKEN_CONTROL_KEY], size_t *size)
{
    /* A byte that neither texts nor control tokens have. */
    static const uint8_t no_text[] = {0xfe};
    moe_token_text text = source->text(source->user, token);
    if (!text.is_control && text.size > 0 &&
        memchr(text.data, MOE_GRAMMAR_CONTROL, text.size) != NULL) {
        *size = sizeof no_text; /* else tokens of single bytes could spell a control token */
        return no_text;
    }
    if (!text.is_control) {
        *size = text.size;
        return (const uint8_t *)text.data;
    }
    control[0] = MOE_GRAMMAR_CONTROL;
    control[1] = (uint8_t)((uint32_t)token >> 16);
    control[2] = (uint8_t)((uint32_t)token >> 8);
    control[3] = (uint8_t)token;
    *size = MOE_TOKEN_CONTROL_KEY;
    return control;
}

uint64_t moe_token_keys_bytes(uint32_t n_vocab)
{
    return (uint64_t)n_vocab * (3 * sizeof(int32_t) + 1) + sizeof(moe_token_keys);
}

void moe_token_keys_free(moe_token_keys **keys)
{
    if (*keys != NULL) {
        free((*keys)->order);
        free((*keys)->shared);
        free((*keys)->rests);
        free((*keys)->rest_ends);
        free((*keys)->ends);
        free(*keys);
        *keys = NULL;
    }
}

static int compare(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    uint32_t n = x->size < y->size ? x->size : y->size;
    int order = memcmp(x->bytes, y->bytes, n);
    return order != 0 ? order : x->size < y->size ? -1 : x->size > y->size;
}

/* Fills in entries of the tokens that have bytes, and the list of ends. controls: room for the keys
 * of control tokens, which entries point into. */
static void collect(moe_token_keys *k, entry *entries, uint8_t *controls)
{
    for (uint32_t t = 0; t < k->source.n_vocab; t++) {
        size_t size = 0;
        entry *e = &entries[k->n];
        if (k->source.text(k->source.user, (int32_t)t).is_end) {
            k->ends[k->n_ends++] = (int32_t)t;
        }
        e->token = (int32_t)t;
        e->bytes = moe_token_key(&k->source, e->token, controls + (size_t)t * MOE_TOKEN_CONTROL_KEY,
                                 &size);
        e->size = (uint32_t)size;
        k->n += size > 0;
    }
    qsort(entries, k->n, sizeof *entries, compare);
}

int moe_token_keys_create(moe_token_keys **out, const moe_token_source *source, moe_error *err)
{
    uint32_t n_vocab = source->n_vocab;
    moe_token_keys *k = moe_calloc(1, sizeof *k);
    entry *entries = moe_calloc(n_vocab, sizeof *entries);
    uint8_t *controls = moe_calloc(n_vocab, MOE_TOKEN_CONTROL_KEY);
    *out = k;
    if (k != NULL) {
        k->source = *source;
        k->order = moe_calloc(n_vocab, sizeof *k->order);
        k->shared = moe_calloc(n_vocab, 1);
        k->ends = moe_calloc(n_vocab, sizeof *k->ends);
        k->rest_ends = moe_calloc(n_vocab, sizeof *k->rest_ends);
    }
    if (k == NULL || entries == NULL || controls == NULL || k->order == NULL || k->shared == NULL ||
        k->ends == NULL || k->rest_ends == NULL) {
        free(entries);
        free(controls);
        moe_token_keys_free(out);
        return moe_fail(err, MOE_ERR_MEMORY, "no memory to sort a vocabulary");
    }
    collect(k, entries, controls);
    size_t n_rest = 0;
    for (uint32_t i = 0; i < k->n; i++) {
        uint32_t shared = 0;
        while (i > 0 && shared < DEEPEST && shared < entries[i].size &&
               shared < entries[i - 1].size &&
               entries[i].bytes[shared] == entries[i - 1].bytes[shared]) {
            shared++;
        }
        k->order[i] = entries[i].token;
        k->shared[i] = (uint8_t)shared;
        n_rest += entries[i].size - shared;
        k->rest_ends[i] = (uint32_t)n_rest;
    }
    k->rests = moe_calloc(n_rest + 1, 1);
    for (uint32_t i = 0; i < k->n && k->rests != NULL; i++) {
        const uint32_t size = entries[i].size - k->shared[i];
        memcpy(k->rests + k->rest_ends[i] - size, entries[i].bytes + k->shared[i], size);
    }
    free(entries);
    free(controls);
    if (k->rests == NULL) {
        moe_token_keys_free(out);
        return moe_fail(err, MOE_ERR_MEMORY, "no memory to sort a vocabulary");
    }
    return MOE_OK;
}

/* Most steps are one look into a table. */
static inline uint32_t step(moe_matcher *m, uint32_t state, uint8_t byte)
{
    const uint16_t *next = state < MOE_MATCH_FIRST ? NULL : m->states[state].next;
    return next != NULL && next[byte] != MOE_MATCH_UNKNOWN ? next[byte]
                                                           : moe_matcher_step(m, state, byte);
}

bool moe_token_keys_allow(const moe_token_keys *k, moe_matcher *matcher, uint32_t *state,
                          uint64_t *bits)
{
    uint32_t states[DEEPEST + 1] = {*state};
    size_t alive = 0; /* bytes of the token before that can be read */
    const uint64_t most = matcher->n_followed + MOE_TOKEN_MASK_VISITS;
    bool emptied = false;
    for (uint32_t i = 0; i < k->n && !matcher->exhausted; i++) {
        size_t at = k->shared[i];
        if (at > alive) {
            continue; /* the bytes that could not be read are this token's, too */
        }
        const uint8_t *rest = k->rests + (i == 0 ? 0 : k->rest_ends[i - 1]);
        const uint8_t *end = k->rests + k->rest_ends[i];
        if (moe_matcher_tidy(matcher, &states[0])) {
            uint8_t control[MOE_TOKEN_CONTROL_KEY];
            size_t size;
            const uint8_t *key = moe_token_key(&k->source, k->order[i], control, &size);
            emptied = true;
            matcher->exhausted |= matcher->n_followed > most;
            for (size_t b = 0; b < at; b++) {
                states[b + 1] = moe_matcher_step(matcher, states[b], key[b]);
            }
        }
        uint32_t now = states[at];
        while (rest < end && (now = step(matcher, now, *rest)) != MOE_MATCH_DEAD) {
            rest++;
            at++;
            if (at <= DEEPEST) {
                states[at] = now;
            }
        }
        alive = at < DEEPEST ? at : DEEPEST;
        if (rest == end) {
            bits[k->order[i] / 64] |= UINT64_C(1) << (k->order[i] % 64);
        }
    }
    *state = states[0];
    return emptied;
}
