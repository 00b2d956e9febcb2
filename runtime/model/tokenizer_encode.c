/* SPDX-License-Identifier: MIT */
/* The outer part of encoding: cuts special tokens out of the text first, and gives the text between
 * them to the model's own algorithm. */
#include "runtime/model/tokenizer_state.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

static int encode_segment(moe_encoder *encoder, const char *text, size_t size, bool space_prefix)
{
    if (size == 0) {
        return MOE_OK;
    }
    if (!moe_allowance_step(encoder->allowance, size)) {
        return moe_encoder_out_of_memory(encoder);
    }
    if (encoder->tokenizer->is_spm) {
        return moe_spm_encode(encoder, text, size, space_prefix);
    }
    return encoder->tokenizer->by_characters ? moe_characters_encode(encoder, text, size)
                                             : moe_bpe_encode(encoder, text, size);
}

/* Encodes text that may hold tokens of the set. *space_prefix: whether SPM's added space goes
 * before the next plain text; true at the start and after a special token. */
static int encode_text(moe_encoder *encoder, const moe_special_set *set, const char *text,
                       size_t size, bool *space_prefix)
{
    const moe_vocab *vocab = &encoder->tokenizer->vocab;
    const bool prefix = encoder->tokenizer->add_space_prefix;
    size_t start = 0;
    size_t at = 0;
    while (at < size) {
        int32_t id = moe_special_match(vocab, set, text + at, size - at);
        if (id == MOE_NO_TOKEN) {
            at++;
            continue;
        }
        int status = encode_segment(encoder, text + start, at - start, *space_prefix);
        if (status == MOE_OK) {
            status = moe_encoder_push(encoder, id);
        }
        if (status != MOE_OK) {
            return status;
        }
        at += moe_vocab_piece(vocab, id).size;
        start = at;
        *space_prefix = prefix;
    }
    int status = encode_segment(encoder, text + start, size - start, *space_prefix);
    *space_prefix = *space_prefix && start == size;
    return status;
}

/* Words are cached in texts of at least this many bytes: there repeated words are worth it. */
#define WORD_CACHE_FROM 1024

static int encoder_open(moe_encoder *encoder, const moe_tokenizer *tokenizer, size_t size,
                        moe_allowance *allowance, moe_error *err)
{
    *encoder = (moe_encoder){.tokenizer = tokenizer,
                             .allowance = allowance,
                             .bytes_before = moe_allowance_now(allowance),
                             .splits = {{.allowance = allowance}, {.allowance = allowance}},
                             .err = err};
    if (size > INT32_MAX - 1) {
        return moe_fail(err, MOE_ERR_ARGUMENT, "a text of %zu bytes is too long to encode at once",
                        size);
    }
    /* On average a token covers about four bytes; with this initial size the list rarely has to
     * grow. */
    const size_t capacity = size / 4 + 16;
    encoder->tokens = moe_allowance_grow(allowance, NULL, 0, capacity, sizeof *encoder->tokens);
    encoder->capacity = capacity;
    bool complete = encoder->tokens != NULL;
    if (complete && size >= WORD_CACHE_FROM) {
        complete = moe_allowance_take(allowance, MOE_WORD_CACHE_SIZE * sizeof *encoder->words);
        encoder->words = moe_calloc(MOE_WORD_CACHE_SIZE, sizeof *encoder->words);
        complete = complete && encoder->words != NULL;
    }
    if (complete && tokenizer->code != NULL) {
        encoder->scratch = moe_pretokenizer_scratch_create();
        complete = complete && encoder->scratch != NULL;
    }
    return complete ? MOE_OK : moe_encoder_out_of_memory(encoder);
}

/* Frees the encoder, and gives the tokens to the caller unless status is an error. */
static int encoder_close(moe_encoder *encoder, int status, int32_t **tokens, size_t *n_tokens)
{
    moe_pretokenizer_scratch_destroy(&encoder->scratch);
    free(encoder->words);
    free(encoder->symbols);
    free(encoder->heap);
    free(encoder->splits.current.ends);
    free(encoder->splits.next.ends);
    uint64_t left = status == MOE_OK ? encoder->capacity * sizeof *encoder->tokens : 0;
    moe_allowance_give(encoder->allowance,
                       moe_allowance_now(encoder->allowance) - encoder->bytes_before - left);
    if (status != MOE_OK) {
        free(encoder->tokens);
        *tokens = NULL;
        *n_tokens = 0;
        return status;
    }
    *tokens = encoder->tokens;
    *n_tokens = encoder->n_tokens;
    return MOE_OK;
}

int moe_tokenizer_encode_within(const moe_tokenizer *tokenizer, const char *text, size_t size,
                                unsigned flags, int32_t **tokens, size_t *n_tokens,
                                moe_allowance *allowance, moe_error *err)
{
    moe_encoder encoder;
    int status = encoder_open(&encoder, tokenizer, size, allowance, err);
    bool add_special = (flags & MOE_ENCODE_ADD_SPECIAL) != 0;
    if (status == MOE_OK && add_special && tokenizer->add_bos && tokenizer->bos != MOE_NO_TOKEN) {
        status = moe_encoder_push(&encoder, tokenizer->bos);
    }
    if (status == MOE_OK) {
        bool space_prefix = tokenizer->add_space_prefix;
        const moe_vocab *vocab = &tokenizer->vocab;
        status = encode_text(&encoder,
                             (flags & MOE_ENCODE_PARSE_SPECIAL) != 0 ? &vocab->all_special
                                                                     : &vocab->user_defined,
                             text, size, &space_prefix);
    }
    if (status == MOE_OK && add_special && tokenizer->add_eos && tokenizer->eos != MOE_NO_TOKEN) {
        status = moe_encoder_push(&encoder, tokenizer->eos);
    }
    return encoder_close(&encoder, status, tokens, n_tokens);
}

int moe_tokenizer_encode(const moe_tokenizer *tokenizer, const char *text, size_t size,
                         unsigned flags, int32_t **tokens, size_t *n_tokens, moe_error *err)
{
    return moe_tokenizer_encode_within(tokenizer, text, size, flags, tokens, n_tokens, NULL, err);
}

/* Encodes spans. Plain text is collected across spans and encoded as one text: a word may begin in
 * markup and continue in the user's text. Only markup is searched for control tokens. */
typedef struct span_encoder {
    moe_encoder encoder;
    moe_special_set plain_set; /* special tokens that plain text may contain */
    char *plain;
    size_t size;
    bool space_prefix;
} span_encoder;

static int flush_plain(span_encoder *spans)
{
    int status = encode_text(&spans->encoder, &spans->plain_set, spans->plain, spans->size,
                             &spans->space_prefix);
    spans->size = 0;
    return status;
}

static int push_special(span_encoder *spans, int32_t token)
{
    int status = flush_plain(spans);
    spans->space_prefix = spans->encoder.tokenizer->add_space_prefix;
    return status != MOE_OK ? status : moe_encoder_push(&spans->encoder, token);
}

static int encode_markup(span_encoder *spans, const moe_text_span *span)
{
    const moe_vocab *vocab = &spans->encoder.tokenizer->vocab;
    int status = MOE_OK;
    for (size_t at = 0; at < span->size && status == MOE_OK;) {
        const char *text = span->text + at;
        int32_t token = moe_special_match(vocab, &vocab->all_special, text, span->size - at);
        if (token == MOE_NO_TOKEN) {
            spans->plain[spans->size++] = *text;
            at++;
        } else {
            status = push_special(spans, token);
            at += moe_vocab_piece(vocab, token).size;
        }
    }
    return status;
}

static int encode_spans(span_encoder *state, const moe_text_span *spans, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (spans[i].is_markup) {
            MOE_TRY(encode_markup(state, &spans[i]));
        } else if (spans[i].size > 0) {
            memcpy(state->plain + state->size, spans[i].text, spans[i].size);
            state->size += spans[i].size;
        }
    }
    return flush_plain(state);
}

int moe_tokenizer_encode_spans(const moe_tokenizer *tokenizer, const moe_text_span *spans, size_t n,
                               moe_string_view markup_source, int32_t **tokens, size_t *n_tokens,
                               moe_allowance *allowance, moe_error *err)
{
    const moe_vocab *vocab = &tokenizer->vocab;
    size_t size = 0;
    for (size_t i = 0; i < n; i++) {
        size += spans[i].size;
    }
    span_encoder state = {.space_prefix = tokenizer->add_space_prefix};
    int status = encoder_open(&state.encoder, tokenizer, size, allowance, err);
    if (status == MOE_OK) {
        state.plain = moe_allowance_grow(allowance, NULL, 0, size + 1, 1);
    }
    if (status == MOE_OK &&
        (state.plain == NULL ||
         !moe_special_set_without(vocab, &vocab->user_defined, markup_source, &state.plain_set))) {
        status = moe_encoder_out_of_memory(&state.encoder);
    }
    if (status == MOE_OK) {
        status = encode_spans(&state, spans, n);
    }
    free(state.plain);
    free(state.plain_set.ids);
    return encoder_close(&state.encoder, status, tokens, n_tokens);
}
