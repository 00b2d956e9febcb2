/* SPDX-License-Identifier: MIT */
/* Merging of neighbours by rank, for byte-level BPE and SentencePiece's BPE, and the cache of
 * words. A candidate on the heap goes stale when one of its two symbols takes part in another
 * merge; it is recognised by its rank, which then differs from the rank of the symbols now at its
 * place. A word may be a whole text of a megabyte, so each byte must take little memory: when the
 * heap is full, it is rebuilt without stale candidates. */
#define XXH_INLINE_ALL
#include "runtime/model/tokenizer_state.h"

#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

int moe_encoder_out_of_memory(moe_encoder *encoder)
{
    return moe_allowance_fail(encoder->allowance, encoder->err, "encoding a text");
}

int moe_encoder_push(moe_encoder *encoder, int32_t token)
{
    if (encoder->n_tokens == encoder->capacity) {
        size_t capacity = encoder->capacity * 2 + 64;
        int32_t *tokens = moe_allowance_grow(encoder->allowance, encoder->tokens, encoder->capacity,
                                             capacity, sizeof *tokens);
        if (tokens == NULL) {
            return moe_encoder_out_of_memory(encoder);
        }
        encoder->tokens = tokens;
        encoder->capacity = capacity;
    }
    encoder->tokens[encoder->n_tokens++] = token;
    return MOE_OK;
}

/* For words of at least this many bytes, the list of tokens gets no more room than it needs. */
#define LONG_WORD 4096

int moe_encoder_reserve_symbols(moe_encoder *encoder, size_t n)
{
    if (n > encoder->symbol_capacity) {
        size_t capacity = n < LONG_WORD ? n + n / 2 + 64 : n;
        moe_symbol *symbols =
            moe_allowance_grow(encoder->allowance, encoder->symbols, encoder->symbol_capacity,
                               capacity, sizeof *symbols);
        if (symbols == NULL) {
            return moe_encoder_out_of_memory(encoder);
        }
        encoder->symbols = symbols;
        encoder->symbol_capacity = capacity;
    }
    return MOE_OK;
}

static bool comes_before(const moe_merge_candidate *a, const moe_merge_candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->left < b->left;
}

static void heap_push(moe_encoder *encoder, moe_merge_candidate candidate)
{
    moe_merge_candidate *heap = encoder->heap;
    size_t at = encoder->n_heap++;
    while (at > 0 && comes_before(&candidate, &heap[(at - 1) / 2])) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = candidate;
}

static moe_merge_candidate heap_pop(moe_encoder *encoder)
{
    moe_merge_candidate *heap = encoder->heap;
    moe_merge_candidate top = heap[0];
    moe_merge_candidate last = heap[--encoder->n_heap];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= encoder->n_heap) {
            break;
        }
        if (child + 1 < encoder->n_heap && comes_before(&heap[child + 1], &heap[child])) {
            child++;
        }
        if (!comes_before(&heap[child], &last)) {
            break;
        }
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = last;
    return top;
}

/* The rank of merging the symbol at `left` with the next one; MOE_NO_RANK: they do not merge. */
static uint32_t rank_at(const moe_encoder *encoder, const char *word, int32_t left,
                        moe_pair_rank pair_rank, int32_t *merged)
{
    const moe_symbol *symbols = encoder->symbols;
    const moe_symbol *a = &symbols[left];
    return a->size == 0 || a->next < 0
               ? MOE_NO_RANK
               : pair_rank(encoder->tokenizer, word, a, &symbols[a->next], merged);
}

static void consider(moe_encoder *encoder, const char *word, int32_t left, moe_pair_rank pair_rank)
{
    int32_t merged;
    uint32_t rank = left < 0 ? MOE_NO_RANK : rank_at(encoder, word, left, pair_rank, &merged);
    if (rank != MOE_NO_RANK) {
        heap_push(encoder, (moe_merge_candidate){rank, (uint32_t)left});
    }
}

static void merge_with_next(moe_symbol *symbols, int32_t left, int32_t merged)
{
    moe_symbol *a = &symbols[left];
    moe_symbol *b = &symbols[a->next];
    a->size += b->size;
    a->id = merged;
    a->next = b->next;
    b->size = 0;
    if (a->next >= 0) {
        symbols[a->next].prev = left;
    }
}

/* Makes room for one candidate for each symbol, and a sixteenth more for stale ones. */
static bool reserve_heap(moe_encoder *encoder, size_t n)
{
    size_t capacity = n + n / 16 + 64;
    if (capacity <= encoder->heap_capacity) {
        return true;
    }
    moe_merge_candidate *heap = moe_allowance_grow(encoder->allowance, encoder->heap,
                                                   encoder->heap_capacity, capacity, sizeof *heap);
    if (heap != NULL) {
        encoder->heap = heap;
        encoder->heap_capacity = capacity;
    }
    return heap != NULL;
}

static void consider_all(moe_encoder *encoder, const char *word, moe_pair_rank pair_rank)
{
    encoder->n_heap = 0;
    for (int32_t i = 0; i >= 0; i = encoder->symbols[i].next) {
        consider(encoder, word, i, pair_rank);
    }
}

static int merge_long(moe_encoder *encoder, const char *word, size_t n, moe_pair_rank pair_rank)
{
    if (!reserve_heap(encoder, n)) {
        return moe_encoder_out_of_memory(encoder);
    }
    moe_symbol *symbols = encoder->symbols;
    consider_all(encoder, word, pair_rank);
    while (encoder->n_heap > 0) {
        moe_merge_candidate best = heap_pop(encoder);
        const int32_t left = (int32_t)best.left;
        int32_t merged;
        if (rank_at(encoder, word, left, pair_rank, &merged) != best.rank) {
            continue;
        }
        merge_with_next(symbols, left, merged);
        if (encoder->n_heap + 2 > encoder->heap_capacity) {
            consider_all(encoder, word, pair_rank);
            continue;
        }
        consider(encoder, word, symbols[left].prev, pair_rank);
        consider(encoder, word, left, pair_rank);
    }
    if (n >= LONG_WORD) { /* gives the symbols' memory back, to make room for the tokens */
        moe_allowance_give(encoder->allowance, encoder->heap_capacity * sizeof *encoder->heap);
        free(encoder->heap);
        encoder->heap = NULL;
        encoder->heap_capacity = 0;
    }
    return MOE_OK;
}

#define SHORT_WORD 32

/* Merges a short word by scanning it: faster than a heap while everything fits the first-level
 * cache. */
static void merge_short(moe_encoder *encoder, const char *word, size_t n, moe_pair_rank pair_rank)
{
    moe_symbol *symbols = encoder->symbols;
    uint32_t ranks[SHORT_WORD];
    int32_t merged[SHORT_WORD];
    for (size_t i = 0; i + 1 < n; i++) {
        ranks[i] = pair_rank(encoder->tokenizer, word, &symbols[i], &symbols[i + 1], &merged[i]);
    }
    for (;;) {
        int32_t best = -1;
        for (int32_t i = 0; symbols[i].next >= 0; i = symbols[i].next) {
            if (ranks[i] != MOE_NO_RANK && (best < 0 || ranks[i] < ranks[best])) {
                best = i;
            }
        }
        if (best < 0) {
            return;
        }
        merge_with_next(symbols, best, merged[best]);
        const moe_symbol *a = &symbols[best];
        if (a->next >= 0) {
            ranks[best] = pair_rank(encoder->tokenizer, word, a, &symbols[a->next], &merged[best]);
        }
        if (a->prev >= 0) {
            ranks[a->prev] =
                pair_rank(encoder->tokenizer, word, &symbols[a->prev], a, &merged[a->prev]);
        }
    }
}

int moe_merge_symbols(moe_encoder *encoder, const char *word, size_t n, moe_pair_rank pair_rank)
{
    if (n > SHORT_WORD) {
        return merge_long(encoder, word, n, pair_rank);
    }
    if (n > 1) {
        merge_short(encoder, word, n, pair_rank);
    }
    return MOE_OK;
}

void moe_word_cache_clear(moe_encoder *encoder)
{
    if (encoder->words != NULL) {
        memset(encoder->words, 0, MOE_WORD_CACHE_SIZE * sizeof *encoder->words);
    }
}

int moe_encode_word_cached(moe_encoder *encoder, const char *segment, size_t start, size_t size,
                           moe_word_encode encode)
{
    if (!moe_allowance_step(encoder->allowance, size)) {
        return moe_encoder_out_of_memory(encoder);
    }
    if (encoder->words == NULL || size < 2 || size > 256) {
        return encode(encoder, segment + start, size);
    }
    uint64_t hash = XXH3_64bits(segment + start, size);
    moe_word_entry *entry = &encoder->words[hash % MOE_WORD_CACHE_SIZE];
    if (entry->hash == hash && entry->size == size &&
        memcmp(segment + entry->start, segment + start, size) == 0) {
        for (uint32_t i = 0; i < entry->n; i++) {
            MOE_TRY(moe_encoder_push(encoder, encoder->tokens[entry->first + i]));
        }
        return MOE_OK;
    }
    size_t first = encoder->n_tokens;
    MOE_TRY(encode(encoder, segment + start, size));
    *entry = (moe_word_entry){.hash = hash,
                              .start = (uint32_t)start,
                              .size = (uint32_t)size,
                              .first = (uint32_t)first,
                              .n = (uint32_t)(encoder->n_tokens - first)};
    return MOE_OK;
}
