/* SPDX-License-Identifier: MIT */
/* Merging of neighbours by rank, for byte-level BPE and SentencePiece's BPE, and the cache of
 * words. A candidate on the heap goes stale when one of its two symbols takes part in another
 * merge. Symbols only grow, so a changed sum of their sizes shows this. */
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

int moe_encoder_reserve_symbols(moe_encoder *encoder, size_t n)
{
    if (n > encoder->symbol_capacity) {
        size_t capacity = n + n / 2 + 64;
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

static bool heap_push(moe_encoder *encoder, moe_merge_candidate candidate)
{
    if (encoder->n_heap == encoder->heap_capacity) {
        size_t capacity = encoder->heap_capacity * 2 + 64;
        moe_merge_candidate *heap = moe_allowance_grow(
            encoder->allowance, encoder->heap, encoder->heap_capacity, capacity, sizeof *heap);
        if (heap == NULL) {
            return false;
        }
        encoder->heap = heap;
        encoder->heap_capacity = capacity;
    }
    moe_merge_candidate *heap = encoder->heap;
    size_t at = encoder->n_heap++;
    while (at > 0 && comes_before(&candidate, &heap[(at - 1) / 2])) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = candidate;
    return true;
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

static bool consider(moe_encoder *encoder, const char *word, int32_t left, moe_pair_rank pair_rank)
{
    if (left < 0 || encoder->symbols[left].next < 0) {
        return true;
    }
    const moe_symbol *a = &encoder->symbols[left];
    const moe_symbol *b = &encoder->symbols[a->next];
    moe_merge_candidate candidate = {.left = (uint32_t)left, .size = a->size + b->size};
    candidate.rank = pair_rank(encoder->tokenizer, word, a, b, &candidate.merged);
    return candidate.rank == MOE_NO_RANK || heap_push(encoder, candidate);
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

static int merge_long(moe_encoder *encoder, const char *word, size_t n, moe_pair_rank pair_rank)
{
    encoder->n_heap = 0;
    for (size_t i = 0; i + 1 < n; i++) {
        if (!consider(encoder, word, (int32_t)i, pair_rank)) {
            return moe_encoder_out_of_memory(encoder);
        }
    }
    moe_symbol *symbols = encoder->symbols;
    while (encoder->n_heap > 0) {
        moe_merge_candidate best = heap_pop(encoder);
        const moe_symbol *a = &symbols[best.left];
        if (a->size == 0 || a->next < 0 || a->size + symbols[a->next].size != best.size) {
            continue;
        }
        merge_with_next(symbols, (int32_t)best.left, best.merged);
        if (!consider(encoder, word, a->prev, pair_rank) ||
            !consider(encoder, word, (int32_t)best.left, pair_rank)) {
            return moe_encoder_out_of_memory(encoder);
        }
    }
    return MOE_OK;
}

#define SHORT_WORD 32

/* Scanning beats a heap while everything fits the first-level cache. */
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
            int status = moe_encoder_push(encoder, encoder->tokens[entry->first + i]);
            if (status != MOE_OK) {
                return status;
            }
        }
        return MOE_OK;
    }
    size_t first = encoder->n_tokens;
    int status = encode(encoder, segment + start, size);
    if (status == MOE_OK) {
        *entry = (moe_word_entry){.hash = hash,
                                  .start = (uint32_t)start,
                                  .size = (uint32_t)size,
                                  .first = (uint32_t)first,
                                  .n = (uint32_t)(encoder->n_tokens - first)};
    }
    return status;
}
