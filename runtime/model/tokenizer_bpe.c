/* SPDX-License-Identifier: MIT */
/* Byte-level BPE: a word starts as its bytes, and neighbours merge in the order of the model's list
 * of merges. Where bytes are not UTF-8, words are cut as if each bad byte were U+FFFD, as other
 * implementations do, but the bytes themselves are encoded, so decoding restores them. */
#include "runtime/model/tokenizer_state.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/model/text_nfc.h"
#include "runtime/model/utf8_text.h"

/* Reads the file's own tokenizer.json, if it has one. */
static int read_own_pretokenizer(moe_tokenizer *tokenizer, const moe_gguf *gguf, moe_error *err)
{
    moe_string_view json = {NULL, 0};
    int status = moe_gguf_get_string(gguf, "tokenizer.huggingface.json", &json, err);
    if (status != MOE_OK || json.data == NULL) {
        return status;
    }
    tokenizer->own_pretokenizer = moe_calloc(1, sizeof *tokenizer->own_pretokenizer);
    if (tokenizer->own_pretokenizer == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory for the pre-tokenizer's patterns");
    }
    tokenizer->pretokenizer = &tokenizer->own_pretokenizer->row;
    return moe_pretokenizer_from_json(tokenizer->own_pretokenizer, json, err);
}

int moe_bpe_find_pretokenizer(moe_tokenizer *tokenizer, const moe_gguf *gguf, moe_error *err)
{
    moe_string_view name = {NULL, 0};
    MOE_TRY(moe_gguf_get_string(gguf, "tokenizer.ggml.pre", &name, err));
    if (name.data != NULL) {
        tokenizer->pretokenizer = moe_pretokenizer_find(name.data, name.size);
    }
    if (tokenizer->pretokenizer == NULL) {
        MOE_TRY(read_own_pretokenizer(tokenizer, gguf, err));
    }
    if (tokenizer->pretokenizer == NULL && name.data == NULL) {
        tokenizer->pretokenizer = moe_pretokenizer_find("default", 7);
    }
    if (tokenizer->pretokenizer == NULL) {
        char names[384];
        moe_pretokenizer_names(names, sizeof names);
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "key 'tokenizer.ggml.pre' is '%.*s', which is not a known pre-tokenizer; "
                        "options.metadata_overrides can name one that cuts words alike "
                        "(tokenizer.ggml.pre=str:NAME): %s",
                        (int)(name.size < 64 ? name.size : 64), name.data, names);
    }
    tokenizer->by_characters = tokenizer->pretokenizer->by_characters;
    return MOE_OK;
}

int moe_bpe_create(moe_tokenizer *tokenizer, const moe_gguf *gguf, moe_error *err)
{
    tokenizer->add_bos = tokenizer->pretokenizer->add_bos;
    if (tokenizer->by_characters) {
        moe_characters_create(tokenizer);
        return moe_bpe_read_merges(tokenizer, gguf, err);
    }
    for (int byte = 0; byte < 256; byte++) {
        char text = (char)byte;
        tokenizer->byte_ids[byte] = moe_vocab_find(&tokenizer->vocab, &text, 1);
    }
    MOE_TRY(moe_pretokenizer_compile(&tokenizer->code, tokenizer->pretokenizer, err));
    return moe_bpe_read_merges(tokenizer, gguf, err);
}

/* Bytes of memory that one byte of text may take, at most. */
enum {
    REPAIRED_BYTES = 5, /* U+FFFD for a byte, in a buffer that grows by half */
    COMPOSED_BYTES = 32 /* two code points of four bytes, thrice, in buffers that grow by half */
};

static int encode_word(moe_encoder *encoder, const char *word, size_t size)
{
    const moe_tokenizer *tokenizer = encoder->tokenizer;
    if (tokenizer->pretokenizer->whole_words) {
        int32_t id = moe_vocab_find(&tokenizer->vocab, word, size);
        if (id != MOE_NO_TOKEN) {
            return moe_encoder_push(encoder, id);
        }
    }
    MOE_TRY(moe_encoder_reserve_symbols(encoder, size));
    moe_symbol *symbols = encoder->symbols;
    for (size_t i = 0; i < size; i++) {
        symbols[i] = (moe_symbol){.start = (uint32_t)i,
                                  .size = 1,
                                  .prev = (int32_t)i - 1,
                                  .next = i + 1 < size ? (int32_t)i + 1 : -1,
                                  .id = tokenizer->byte_ids[(uint8_t)word[i]]};
    }
    MOE_TRY(moe_merge_symbols(encoder, word, size, moe_bpe_pair_rank));
    for (int32_t i = 0; i >= 0; i = symbols[i].next) {
        /* A byte without a token becomes the unknown token; if there is none, it is dropped, as in
         * other implementations. */
        int32_t id = symbols[i].id != MOE_NO_TOKEN ? symbols[i].id : tokenizer->unknown;
        if (id != MOE_NO_TOKEN) {
            MOE_TRY(moe_encoder_push(encoder, id));
        }
    }
    return MOE_OK;
}

typedef struct text_buffer {
    char *data;
    size_t size, capacity;
} text_buffer;

static bool append(text_buffer *buffer, const void *data, size_t size)
{
    if (size > buffer->capacity - buffer->size) {
        size_t capacity = buffer->capacity + buffer->capacity / 2 + size + 64;
        char *grown = realloc(buffer->data, capacity);
        if (grown == NULL) {
            return false;
        }
        buffer->data = grown;
        buffer->capacity = capacity;
    }
    if (size > 0) {
        memcpy(buffer->data + buffer->size, data, size);
        buffer->size += size;
    }
    return true;
}

/* The length of the valid UTF-8 at the start of the text. */
static size_t valid_prefix(const char *text, size_t size)
{
    size_t at = 0;
    while (at < size) {
        size_t bad;
        int open;
        size_t step = moe_utf8_step((const uint8_t *)text + at, size - at, &bad, &open);
        if (step == 0) {
            break;
        }
        at += step;
    }
    return at;
}

/* Normalises the valid stretches to NFC and keeps bad bytes. */
static int normalise(moe_encoder *encoder, const char *text, size_t size, text_buffer *out)
{
    for (size_t at = 0; at < size;) {
        size_t valid = valid_prefix(text + at, size - at);
        if (valid > 0) {
            size_t n = 0;
            char *composed = moe_nfc(text + at, valid, &n);
            bool stored = composed != NULL && append(out, composed, n);
            free(composed);
            if (!stored) {
                return moe_encoder_out_of_memory(encoder);
            }
            at += valid;
        }
        if (at < size) {
            if (!append(out, text + at, 1)) {
                return moe_encoder_out_of_memory(encoder);
            }
            at++;
        }
    }
    return MOE_OK;
}

/* For a text with bad bytes: cuts a copy in which each is a U+FFFD, then maps the cuts back to the
 * text. */
static int split_repaired(moe_encoder *encoder, const char *text, size_t size)
{
    text_buffer copy = {0};
    const uint64_t bytes = (uint64_t)size * REPAIRED_BYTES;
    if (!moe_allowance_take(encoder->allowance, bytes)) {
        return moe_encoder_out_of_memory(encoder);
    }
    int status = MOE_OK;
    for (size_t at = 0; at < size && status == MOE_OK;) {
        size_t valid = valid_prefix(text + at, size - at);
        bool stored = append(&copy, text + at, valid);
        at += valid;
        if (at < size) {
            stored = stored && append(&copy, "\xEF\xBF\xBD", 3);
            at++;
        }
        if (!stored || copy.size > INT32_MAX) {
            status = moe_encoder_out_of_memory(encoder);
        }
    }
    if (status == MOE_OK) {
        status = moe_pretokenizer_split(encoder->tokenizer->code, encoder->scratch, copy.data,
                                        copy.size, &encoder->splits, encoder->err);
    }
    free(copy.data);
    moe_allowance_give(encoder->allowance, bytes);
    if (status != MOE_OK) {
        return status;
    }
    moe_split_list *list = &encoder->splits.current;
    size_t in_copy = 0;
    size_t at = 0;
    for (size_t i = 0; i < list->n; i++) {
        while (in_copy < list->ends[i]) {
            size_t bad;
            int open;
            size_t step = moe_utf8_step((const uint8_t *)text + at, size - at, &bad, &open);
            in_copy += step > 0 ? step : 3;
            at += step > 0 ? step : 1;
        }
        list->ends[i] = (uint32_t)at;
    }
    return MOE_OK;
}

static int encode_normal(moe_encoder *encoder, const char *text, size_t size)
{
    int status;
    if (valid_prefix(text, size) == size) {
        status = moe_pretokenizer_split(encoder->tokenizer->code, encoder->scratch, text, size,
                                        &encoder->splits, encoder->err);
    } else {
        status = split_repaired(encoder, text, size);
    }
    moe_word_cache_clear(encoder);
    size_t start = 0;
    for (size_t i = 0; i < encoder->splits.current.n && status == MOE_OK; i++) {
        size_t end = encoder->splits.current.ends[i];
        status = moe_encode_word_cached(encoder, text, start, end - start, encode_word);
        start = end;
    }
    return status;
}

int moe_bpe_encode(moe_encoder *encoder, const char *text, size_t size)
{
    if (!encoder->tokenizer->pretokenizer->nfc || !moe_nfc_may_change(text, size)) {
        return encode_normal(encoder, text, size);
    }
    text_buffer composed = {0};
    const uint64_t bytes = (uint64_t)size * COMPOSED_BYTES;
    if (!moe_allowance_take(encoder->allowance, bytes)) {
        return moe_encoder_out_of_memory(encoder);
    }
    int status = normalise(encoder, text, size, &composed);
    if (status == MOE_OK && composed.size > INT32_MAX) {
        status = moe_encoder_out_of_memory(encoder);
    }
    if (status == MOE_OK) {
        status = encode_normal(encoder, composed.data, composed.size);
    }
    free(composed.data);
    moe_allowance_give(encoder->allowance, bytes);
    return status;
}
