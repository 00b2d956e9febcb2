/* SPDX-License-Identifier: MIT */
/* SentencePiece's BPE. A text starts as its characters. Neighbours merge if their joined text is a
 * piece; the piece with the highest score goes first. Text without a piece is encoded as bytes. */
#include "runtime/model/tokenizer_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/model/utf8_text.h"

typedef struct scored_id {
    float score;
    uint32_t id;
} scored_id;

static int compare_falling(const void *a, const void *b)
{
    float x = ((const scored_id *)a)->score;
    float y = ((const scored_id *)b)->score;
    return x > y ? -1 : x < y;
}

static int read_scores(moe_tokenizer *tokenizer, const moe_gguf *gguf, scored_id *order,
                       moe_error *err)
{
    uint32_t n = tokenizer->vocab.n_tokens;
    const moe_gguf_kv *kv = moe_gguf_find(gguf, "tokenizer.ggml.scores");
    if (kv == NULL || kv->type != MOE_GGUF_ARRAY || kv->n_elements != n) {
        return moe_fail(err, MOE_ERR_FORMAT,
                        "tokenizer.ggml.scores has not one number for each of the %u tokens, which "
                        "the \"llama\" tokenizer needs",
                        n);
    }
    for (uint32_t id = 0; id < n; id++) {
        order[id].id = id;
        if (moe_gguf_array_f32(kv, id, &order[id].score) != MOE_OK || isnan(order[id].score)) {
            return moe_fail(err, MOE_ERR_FORMAT, "tokenizer.ggml.scores[%u] is not a number", id);
        }
    }
    qsort(order, n, sizeof *order, compare_falling);
    uint32_t rank = 0;
    for (uint32_t i = 0; i < n; i++) {
        rank += i > 0 && order[i].score < order[i - 1].score;
        tokenizer->ranks[order[i].id] = rank;
    }
    return MOE_OK;
}

int moe_spm_create(moe_tokenizer *tokenizer, const moe_gguf *gguf, moe_error *err)
{
    const moe_vocab *vocab = &tokenizer->vocab;
    for (int byte = 0; byte < 256; byte++) {
        tokenizer->byte_ids[byte] = MOE_NO_TOKEN;
    }
    for (uint32_t id = 0; id < vocab->n_tokens; id++) {
        if (vocab->types[id] == MOE_TOKEN_BYTE) {
            tokenizer->byte_ids[(uint8_t)vocab->pieces[vocab->offsets[id]]] = (int32_t)id;
        }
    }
    tokenizer->add_bos = true;
    tokenizer->add_space_prefix = true;
    tokenizer->words_are_apart = moe_vocab_words_are_apart(vocab);
    tokenizer->ranks = moe_calloc(vocab->n_tokens, sizeof *tokenizer->ranks);
    scored_id *order = moe_calloc(vocab->n_tokens, sizeof *order);
    int status = MOE_OK;
    if (tokenizer->ranks == NULL || order == NULL) {
        status = moe_fail(err, MOE_ERR_MEMORY, "out of memory for %u tokens", vocab->n_tokens);
    } else {
        status = read_scores(tokenizer, gguf, order, err);
    }
    free(order);
    return status;
}

static uint32_t pair_rank(const moe_tokenizer *tokenizer, const char *word, const moe_symbol *left,
                          const moe_symbol *right, int32_t *merged)
{
    *merged =
        moe_vocab_find(&tokenizer->vocab, word + left->start, (size_t)left->size + right->size);
    return *merged == MOE_NO_TOKEN ? MOE_NO_RANK : tokenizer->ranks[*merged];
}

static int push_symbol(moe_encoder *encoder, const char *word, const moe_symbol *symbol)
{
    if (symbol->id != MOE_NO_TOKEN) {
        return moe_encoder_push(encoder, symbol->id);
    }
    for (uint32_t i = 0; i < symbol->size; i++) {
        uint8_t byte = (uint8_t)word[symbol->start + i];
        int32_t id = encoder->tokenizer->byte_ids[byte];
        if (id == MOE_NO_TOKEN) {
            /* One unknown token stands for the whole character. */
            if (encoder->tokenizer->unknown == MOE_NO_TOKEN) {
                return moe_fail(encoder->err, MOE_ERR_UNSUPPORTED,
                                "the vocabulary has no token for byte 0x%02X and none for unknown "
                                "text",
                                byte);
            }
            return moe_encoder_push(encoder, encoder->tokenizer->unknown);
        }
        MOE_TRY(moe_encoder_push(encoder, id));
    }
    return MOE_OK;
}

static int encode_word(moe_encoder *encoder, const char *word, size_t size)
{
    MOE_TRY(moe_encoder_reserve_symbols(encoder, size));
    size_t n = 0;
    for (size_t at = 0; at < size;) {
        size_t bad;
        int open;
        size_t step = moe_utf8_step((const uint8_t *)word + at, size - at, &bad, &open);
        step = step == 0 ? 1 : step;
        encoder->symbols[n] =
            (moe_symbol){.start = (uint32_t)at,
                         .size = (uint32_t)step,
                         .prev = (int32_t)n - 1,
                         .next = (int32_t)n + 1,
                         .id = moe_vocab_find(&encoder->tokenizer->vocab, word + at, step)};
        n++;
        at += step;
    }
    encoder->symbols[n - 1].next = -1;
    MOE_TRY(moe_merge_symbols(encoder, word, n, pair_rank));
    for (int32_t i = 0; i >= 0; i = encoder->symbols[i].next) {
        MOE_TRY(push_symbol(encoder, word, &encoder->symbols[i]));
    }
    return MOE_OK;
}

int moe_spm_encode(moe_encoder *encoder, const char *text, size_t size, bool space_prefix)
{
    char *spaced = moe_allowance_grow(encoder->allowance, NULL, 0, size + 1, 1);
    if (spaced == NULL) {
        return moe_encoder_out_of_memory(encoder);
    }
    size_t n = 0;
    if (space_prefix) {
        spaced[n++] = ' ';
    }
    for (size_t i = 0; i < size; i++) {
        /* A U+2581 in the text equals a space, as in SentencePiece. */
        if ((uint8_t)text[i] == 0xE2 && size - i >= 3 && memcmp(text + i, "\xE2\x96\x81", 3) == 0) {
            spaced[n++] = ' ';
            i += 2;
        } else {
            spaced[n++] = text[i];
        }
    }
    moe_word_cache_clear(encoder);
    int status = MOE_OK;
    size_t start = 0;
    for (size_t at = 1; at <= n && status == MOE_OK; at++) {
        bool cut = at == n || (encoder->tokenizer->words_are_apart && spaced[at] == ' ' &&
                               spaced[at - 1] != ' ');
        if (cut) {
            status = moe_encode_word_cached(encoder, spaced, start, at - start, encode_word);
            start = at;
        }
    }
    free(spaced);
    moe_allowance_give(encoder->allowance, size + 1);
    return status;
}
