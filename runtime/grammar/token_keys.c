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
    /* A text that no grammar can match, because the byte 0xFE occurs neither in UTF-8 nor in the
     * keys of control tokens. */
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

uint64_t moe_token_keys_bytes(const moe_token_source *source, uint64_t *sorting)
{
    const uint64_t n = source->n_vocab;
    uint64_t bytes = sizeof(moe_token_keys) +
                     n * (2 * sizeof(int32_t) + sizeof(uint32_t) + sizeof(moe_token_branch) + 2);
    for (uint32_t t = 0; t < source->n_vocab; t++) {
        uint8_t control[MOE_TOKEN_CONTROL_KEY];
        size_t size;
        (void)moe_token_key(source, (int32_t)t, control, &size);
        bytes += size;
    }
    *sorting = n * (2 * sizeof(entry) + MOE_TOKEN_CONTROL_KEY); /* qsort() takes a copy */
    return bytes;
}

void moe_token_keys_free(moe_token_keys **keys)
{
    if (*keys != NULL) {
        free((*keys)->order);
        free((*keys)->shared);
        free((*keys)->rests);
        free((*keys)->rest_ends);
        free((*keys)->branches);
        free((*keys)->n_chars);
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

/* Lists all tokens that have bytes in `entries`, and all tokens that end a text in k->ends.
 * `controls` receives the keys of control tokens; entries point into it. */
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

static bool starts_char(uint8_t byte)
{
    return (byte & 0xc0) != 0x80;
}

/* For each byte position of a token: which kinds of characters the bytes from there to its end
 * hold, and how many characters. */
typedef struct rest_kinds {
    uint16_t kinds[DEEPEST + 1];
    uint8_t n_chars[DEEPEST + 1];
} rest_kinds;

static void find_kinds(const entry *e, rest_kinds *r)
{
    memset(r, 0, sizeof *r);
    if (e->size >= DEEPEST) {
        for (size_t i = 0; i <= DEEPEST; i++) {
            r->kinds[i] = MOE_TOKEN_ODD;
        }
        return;
    }
    for (uint32_t i = e->size; i-- > 0;) {
        const bool is_many = e->bytes[i] >= 0x80;
        const uint32_t n = is_many ? moe_char_well_formed(e->bytes + i, e->size - i) : 1;
        const uint32_t kind = is_many ? (uint32_t)MOE_CHAR_MANY : moe_char_kind_of(e->bytes[i]);
        r->kinds[i] = n == 0 ? MOE_TOKEN_ODD : (uint16_t)(1u << kind | r->kinds[i + n]);
        r->n_chars[i] = n == 0 ? 0 : (uint8_t)(1 + r->n_chars[i + n]);
    }
}

/* Finds all branches of the trie. `open` holds the branches that the current token belongs to, from
 * the root down; each shares more bytes than the one before. */
static void find_branches(moe_token_keys *k, const entry *entries)
{
    uint32_t open[DEEPEST + 1];
    uint32_t n_open = 0;
    rest_kinds r;
    for (uint32_t i = 0; i < k->n; i++) {
        while (n_open > 0 && k->shared[open[n_open - 1]] >= k->shared[i]) {
            k->branches[open[--n_open]].end = i;
        }
        open[n_open++] = i;
        find_kinds(&entries[i], &r);
        for (uint32_t b = 0; b < entries[i].size && b < DEEPEST; b++) {
            k->n_chars[i] += starts_char(entries[i].bytes[b]);
        }
        for (uint32_t b = 0; b < n_open; b++) {
            moe_token_branch *branch = &k->branches[open[b]];
            const uint8_t from = k->shared[open[b]];
            branch->kinds |= r.kinds[from];
            branch->n_longest =
                r.n_chars[from] > branch->n_longest ? r.n_chars[from] : branch->n_longest;
        }
    }
    while (n_open > 0) {
        k->branches[open[--n_open]].end = k->n;
    }
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
        k->branches = moe_calloc(n_vocab, sizeof *k->branches);
        k->n_chars = moe_calloc(n_vocab, 1);
    }
    if (k == NULL || entries == NULL || controls == NULL || k->order == NULL || k->shared == NULL ||
        k->ends == NULL || k->rest_ends == NULL || k->branches == NULL || k->n_chars == NULL) {
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
    find_branches(k, entries);
    free(entries);
    free(controls);
    if (k->rests == NULL) {
        moe_token_keys_free(out);
        return moe_fail(err, MOE_ERR_MEMORY, "no memory to sort a vocabulary");
    }
    return MOE_OK;
}

/* Advances the state by one byte. Most steps are one look into a table. */
static inline uint32_t step(moe_matcher *m, uint32_t state, uint8_t byte)
{
    const uint16_t *next = state < MOE_MATCH_FIRST ? NULL : m->states[state].next;
    return next != NULL && next[byte] != MOE_MATCH_UNKNOWN ? next[byte]
                                                           : moe_matcher_step(m, state, byte);
}

/* ---- A mask ---- */

/* How many characters of the given kinds can be read from a state on, whichever characters they
 * are. Within a string this is any number; where a grammar counts characters, it is limited. */
typedef struct kinds_read {
    uint32_t state, kinds; /* 0: nothing is known */
    uint32_t behind;       /* the state behind so many, MOE_MATCH_DEAD or MOE_MATCH_MIXED */
    uint32_t n;
} kinds_read;

enum {
    N_KINDS_READ = 64,
    MOST_READ_AT_ONCE = 32, /* each may take a new state */
};

static uint32_t step_kinds(moe_matcher *m, uint32_t state, uint32_t kinds)
{
    uint32_t all = MOE_MATCH_UNKNOWN;
    for (uint32_t left = kinds; left != 0; left &= left - 1) {
        const uint32_t kind = (uint32_t)__builtin_ctz(left);
        const uint32_t to = moe_matcher_step_kind(m, state, (moe_char_kind)kind);
        if (all != MOE_MATCH_UNKNOWN && to != all) {
            return MOE_MATCH_MIXED;
        }
        all = to;
    }
    return all;
}

/* Returns how many characters of the branch's tokens can be read at the state, whichever characters
 * they are. -1: it depends on the characters. */
static int32_t count_readable(moe_matcher *m, kinds_read *known, uint32_t state,
                              const moe_token_branch *branch)
{
    if (state < MOE_MATCH_FIRST || (branch->kinds & MOE_TOKEN_ODD) != 0 ||
        branch->n_longest > MOST_READ_AT_ONCE) {
        return -1;
    }
    kinds_read *k = &known[(state * 7 + branch->kinds) % N_KINDS_READ];
    if (k->state != state || k->kinds != branch->kinds) {
        *k = (kinds_read){state, branch->kinds, state, 0};
    }
    while (k->n < branch->n_longest && k->behind != MOE_MATCH_DEAD &&
           k->behind != MOE_MATCH_MIXED) {
        const uint32_t to = step_kinds(m, k->behind, k->kinds);
        k->n += to == k->behind                                 ? MOST_READ_AT_ONCE
                : to == MOE_MATCH_DEAD || to == MOE_MATCH_MIXED ? 0
                                                                : 1;
        k->behind = to;
    }
    return k->behind == MOE_MATCH_MIXED && k->n < branch->n_longest ? -1 : (int32_t)k->n;
}

/* Allows those tokens of the branch that have at most n_readable characters behind the bytes that
 * all of the branch share. */
static void allow_branch(const moe_token_keys *k, uint32_t first, const uint8_t *rest,
                         uint32_t n_readable, uint64_t *bits)
{
    uint32_t most = k->n_chars[first] + n_readable;
    for (const uint8_t *end = k->rests + k->rest_ends[first]; rest < end; rest++) {
        most -= starts_char(*rest);
    }
    for (uint32_t i = first; i < k->branches[first].end; i++) {
        bits[k->order[i] / 64] |= (uint64_t)(k->n_chars[i] <= most) << (k->order[i] % 64);
    }
}

bool moe_token_keys_allow(const moe_token_keys *k, moe_matcher *matcher, uint32_t *state,
                          uint64_t *bits)
{
    uint32_t states[DEEPEST + 1] = {*state};
    size_t alive = 0; /* bytes of the token before that can be read */
    kinds_read known[N_KINDS_READ] = {{0}};
    const uint64_t most = matcher->n_followed + MOE_TOKEN_MASK_VISITS;
    bool emptied = false;
    for (uint32_t i = 0; i < k->n && !matcher->exhausted;) {
        size_t at = k->shared[i];
        if (at > alive) { /* the bytes that could not be read are the branch's, too */
            i = k->branches[i].end;
            continue;
        }
        const uint8_t *rest = k->rests + (i == 0 ? 0 : k->rest_ends[i - 1]);
        const uint8_t *end = k->rests + k->rest_ends[i];
        if (moe_matcher_tidy(matcher, &states[0])) {
            uint8_t control[MOE_TOKEN_CONTROL_KEY];
            size_t size;
            const uint8_t *key = moe_token_key(&k->source, k->order[i], control, &size);
            emptied = true;
            memset(known, 0, sizeof known);
            matcher->exhausted |= matcher->n_followed > most;
            for (size_t b = 0; b < at; b++) {
                states[b + 1] = moe_matcher_step(matcher, states[b], key[b]);
            }
        }
        uint32_t now = states[at];
        const int32_t n_readable = step(matcher, now, *rest) == MOE_MATCH_DEAD
                                       ? -1
                                       : count_readable(matcher, known, now, &k->branches[i]);
        if (n_readable >= 0) {
            allow_branch(k, i, rest, (uint32_t)n_readable, bits);
            alive = at;
            i = k->branches[i].end;
            continue;
        }
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
        i++;
    }
    *state = states[0];
    return emptied;
}
