/* SPDX-License-Identifier: MIT */
/* BPE of characters (Gemma-4, Sarvam). A text starts as its characters; a space is U+2581 in the
 * vocabulary. Neighbours merge in the order of the model's list of merges, through the whole text.
 * A character without a token is encoded as its bytes. */
#include "runtime/model/tokenizer_state.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/error.h"
#include "runtime/model/utf8_text.h"

void moe_characters_create(moe_tokenizer *tokenizer)
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
    tokenizer->words_are_apart = moe_vocab_words_are_apart(vocab);
}

static bool has_bytes(const moe_tokenizer *tokenizer, const char *text, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        if (tokenizer->byte_ids[(uint8_t)text[i]] == MOE_NO_TOKEN) {
            return false;
        }
    }
    return true;
}

/* Adds the character's symbol, or a symbol for each of its bytes; returns how many. A run of
 * characters that the vocabulary cannot spell at all becomes one unknown token. */
static size_t add_character(const moe_tokenizer *tokenizer, moe_symbol *symbols, size_t n,
                            const char *word, size_t at, size_t size)
{
    const int32_t id = moe_vocab_find(&tokenizer->vocab, word + at, size);
    const bool by_bytes = id == MOE_NO_TOKEN && has_bytes(tokenizer, word + at, size);
    const size_t n_parts = by_bytes ? size : 1;
    if (id == MOE_NO_TOKEN && !by_bytes && n > 0 && symbols[n - 1].id == MOE_NO_TOKEN) {
        symbols[n - 1].size += (uint32_t)size;
        return 0;
    }
    for (size_t i = 0; i < n_parts; i++) {
        symbols[n + i] =
            (moe_symbol){.start = (uint32_t)(at + i),
                         .size = (uint32_t)(size / n_parts),
                         .prev = (int32_t)(n + i) - 1,
                         .next = (int32_t)(n + i) + 1,
                         .id = by_bytes ? tokenizer->byte_ids[(uint8_t)word[at + i]] : id};
    }
    return n_parts;
}

static int encode_word(moe_encoder *encoder, const char *word, size_t size)
{
    const moe_tokenizer *tokenizer = encoder->tokenizer;
    MOE_TRY(moe_encoder_reserve_symbols(encoder, size));
    moe_symbol *symbols = encoder->symbols;
    size_t n = 0;
    for (size_t at = 0; at < size;) {
        size_t bad;
        int open;
        size_t step = moe_utf8_step((const uint8_t *)word + at, size - at, &bad, &open);
        step = step == 0 ? 1 : step;
        n += add_character(tokenizer, symbols, n, word, at, step);
        at += step;
    }
    symbols[n - 1].next = -1;
    MOE_TRY(moe_merge_symbols(encoder, word, n, moe_bpe_pair_rank));
    for (int32_t i = 0; i >= 0; i = symbols[i].next) {
        int32_t id = symbols[i].id != MOE_NO_TOKEN ? symbols[i].id : tokenizer->unknown;
        if (id != MOE_NO_TOKEN) {
            MOE_TRY(moe_encoder_push(encoder, id));
        }
    }
    return MOE_OK;
}

int moe_characters_encode(moe_encoder *encoder, const char *text, size_t size)
{
    char *spaced = moe_allowance_grow(encoder->allowance, NULL, 0, size, 1);
    if (spaced == NULL) {
        return moe_encoder_out_of_memory(encoder);
    }
    /* A U+2581 in the text is taken for a space, as other implementations do. */
    size_t n = 0;
    bool apart = encoder->tokenizer->words_are_apart;
    for (size_t i = 0; i < size; i++) {
        bool is_mark = size - i >= 3 && memcmp(text + i, "\xE2\x96\x81", 3) == 0;
        spaced[n++] = is_mark ? ' ' : text[i];
        i += is_mark ? 2 : 0;
    }
    moe_word_cache_clear(encoder);
    int status = MOE_OK;
    size_t start = 0;
    for (size_t at = 1; at <= n && status == MOE_OK; at++) {
        if (at == n || (apart && spaced[at] == ' ' && spaced[at - 1] != ' ')) {
            status = moe_encode_word_cached(encoder, spaced, start, at - start, encode_word);
            start = at;
        }
    }
    free(spaced);
    moe_allowance_give(encoder->allowance, size);
    return status;
}
