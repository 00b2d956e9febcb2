/* SPDX-License-Identifier: MIT */
/* Creates tokenizers from metadata, and answers queries about their tokens. */
#include "runtime/model/tokenizer_state.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

/* Control tokens that end a turn or a text, whatever the metadata says. Files older than the key
 * eot_token_id do not mark them in any other way. */
static const char *const end_texts[] = {
    "<|im_end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|return|>",
    "<end_of_turn>",
    "<|EOT|>",
    "</s>",
    "<|end_of_turn|>",
    "<eos>",
    "<｜end▁of▁sentence｜>",
    "<turn|>",
    "[EOT]",
    "[EOS]",
    "<|flush|>",
    "<|calls|>",
    "[e~[",
    "<|end_of_msg|>",
};

static int read_id(const moe_tokenizer *tokenizer, const moe_gguf *gguf, const char *key,
                   int32_t *id, moe_error *err)
{
    uint32_t value = UINT32_MAX;
    MOE_TRY(moe_gguf_get_u32(gguf, key, &value, err));
    if (value != UINT32_MAX && value >= tokenizer->vocab.n_tokens) {
        return moe_fail(err, MOE_ERR_FORMAT, "%s is %u, but there are only %u tokens", key, value,
                        tokenizer->vocab.n_tokens);
    }
    *id = value == UINT32_MAX ? MOE_NO_TOKEN : (int32_t)value;
    return MOE_OK;
}

static int read_ids(moe_tokenizer *tokenizer, const moe_gguf *gguf, moe_error *err)
{
    const struct {
        const char *key;
        int32_t *id;
    } ids[] = {
        {"tokenizer.ggml.bos_token_id", &tokenizer->bos},
        {"tokenizer.ggml.eos_token_id", &tokenizer->eos},
        {"tokenizer.ggml.eot_token_id", &tokenizer->eot},
        {"tokenizer.ggml.eom_token_id", &tokenizer->eom},
        {"tokenizer.ggml.unknown_token_id", &tokenizer->unknown},
        {"tokenizer.ggml.padding_token_id", &tokenizer->padding},
    };
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        MOE_TRY(read_id(tokenizer, gguf, ids[i].key, ids[i].id, err));
    }
    const struct {
        const char *key;
        bool *value;
    } switches[] = {
        {"tokenizer.ggml.add_bos_token", &tokenizer->add_bos},
        {"tokenizer.ggml.add_eos_token", &tokenizer->add_eos},
        {"tokenizer.ggml.add_space_prefix", &tokenizer->add_space_prefix},
    };
    for (size_t i = 0; i < sizeof switches / sizeof switches[0]; i++) {
        MOE_TRY(moe_gguf_get_bool(gguf, switches[i].key, switches[i].value, err));
    }
    return MOE_OK;
}

static int32_t find_control(const moe_vocab *vocab, const char *text)
{
    size_t size = strlen(text);
    int32_t id = moe_special_match(vocab, &vocab->all_special, text, size);
    return id != MOE_NO_TOKEN && vocab->types[id] == MOE_TOKEN_CONTROL &&
                   moe_vocab_piece(vocab, id).size == size
               ? id
               : MOE_NO_TOKEN;
}

static int mark_ends(moe_tokenizer *tokenizer, moe_error *err)
{
    const moe_vocab *vocab = &tokenizer->vocab;
    tokenizer->ends = moe_calloc(vocab->n_tokens, 1);
    if (tokenizer->ends == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory for %u tokens", vocab->n_tokens);
    }
    const int32_t named[] = {tokenizer->eos, tokenizer->eot, tokenizer->eom};
    for (size_t i = 0; i < sizeof named / sizeof named[0]; i++) {
        if (named[i] != MOE_NO_TOKEN) {
            tokenizer->ends[named[i]] = 1;
        }
    }
    int32_t call = find_control(vocab, "<|call|>");
    call = call == MOE_NO_TOKEN ? find_control(vocab, "<|calls|>") : call;
    for (size_t i = 0; i < sizeof end_texts / sizeof end_texts[0]; i++) {
        int32_t id = find_control(vocab, end_texts[i]);
        /* gpt-oss ends a message with <|end|>, and its turn with <|return|> or <|call|>; Solar with
         * <|flush|> or <|calls|>. */
        if (id != MOE_NO_TOKEN && (call == MOE_NO_TOKEN || strcmp(end_texts[i], "<|end|>") != 0)) {
            tokenizer->ends[id] = 1;
        }
    }
    if (call != MOE_NO_TOKEN) {
        tokenizer->ends[call] = 1;
    }
    /* After a tool call Gemma-4 would go on with the tool's answer, which only the caller can
     * give. */
    const int32_t response = moe_special_match(vocab, &vocab->all_special, "<|tool_response>", 16);
    if (response != MOE_NO_TOKEN && moe_vocab_piece(vocab, response).size == 16) {
        tokenizer->ends[response] = 1;
    }
    return MOE_OK;
}

static int fill(moe_tokenizer *tokenizer, const moe_gguf *gguf, moe_error *err)
{
    moe_string_view model = {NULL, 0};
    int status = moe_gguf_get_string(gguf, "tokenizer.ggml.model", &model, err);
    if (status != MOE_OK) {
        return status;
    }
    bool is_bpe = model.size == 4 && memcmp(model.data, "gpt2", 4) == 0;
    bool is_gemma4 = model.size == 6 && memcmp(model.data, "gemma4", 6) == 0;
    tokenizer->is_spm = model.size == 5 && memcmp(model.data, "llama", 5) == 0;
    if (!is_bpe && !is_gemma4 && !tokenizer->is_spm) {
        return moe_fail(
            err, MOE_ERR_UNSUPPORTED, "tokenizer.ggml.model is \"%.*s\"; known: llama gpt2 gemma4",
            (int)(model.size < 64 ? model.size : 64), model.data == NULL ? "" : model.data);
    }
    if (is_gemma4) { /* whatever tokenizer.ggml.pre says */
        tokenizer->pretokenizer = moe_pretokenizer_find("gemma4", 6);
        tokenizer->by_characters = true;
    } else if (is_bpe) {
        status = moe_bpe_find_pretokenizer(tokenizer, gguf, err);
    }
    moe_spelling spelling = tokenizer->by_characters ? MOE_SPELT_IN_CHARACTERS
                            : is_bpe                 ? MOE_SPELT_IN_BYTES
                                                     : MOE_SPELT_BY_SPM;
    if (status == MOE_OK) {
        status = moe_vocab_create(&tokenizer->vocab, gguf, spelling, err);
    }
    if (status == MOE_OK) {
        status = tokenizer->is_spm ? moe_spm_create(tokenizer, gguf, err)
                                   : moe_bpe_create(tokenizer, gguf, err);
    }
    if (status == MOE_OK) {
        status = read_ids(tokenizer, gguf, err);
        /* Gemma-4's early files say add_bos = false, but without BOS the model writes nonsense. */
        tokenizer->add_bos = tokenizer->add_bos || is_gemma4;
    }
    return status != MOE_OK ? status : mark_ends(tokenizer, err);
}

int moe_tokenizer_create(moe_tokenizer **out, const moe_gguf *gguf, moe_error *err)
{
    *out = NULL;
    moe_tokenizer *tokenizer = moe_calloc(1, sizeof *tokenizer);
    if (tokenizer == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory for the tokenizer");
    }
    int status = fill(tokenizer, gguf, err);
    if (status != MOE_OK) {
        moe_tokenizer_destroy(&tokenizer);
    }
    *out = tokenizer;
    return status;
}

void moe_tokenizer_destroy(moe_tokenizer **tokenizer)
{
    if (*tokenizer != NULL) {
        moe_vocab_destroy(&(*tokenizer)->vocab);
        moe_pretokenizer_free(&(*tokenizer)->code);
        free((*tokenizer)->own_pretokenizer);
        free((*tokenizer)->merges);
        free((*tokenizer)->ranks);
        free((*tokenizer)->ends);
        free(*tokenizer);
        *tokenizer = NULL;
    }
}

uint32_t moe_tokenizer_n_tokens(const moe_tokenizer *tokenizer)
{
    return tokenizer->vocab.n_tokens;
}

int32_t moe_tokenizer_bos(const moe_tokenizer *tokenizer)
{
    return tokenizer->bos;
}

int32_t moe_tokenizer_eos(const moe_tokenizer *tokenizer)
{
    return tokenizer->eos;
}

static bool in_range(const moe_tokenizer *tokenizer, int32_t token)
{
    return token >= 0 && (uint32_t)token < tokenizer->vocab.n_tokens;
}

bool moe_tokenizer_is_end(const moe_tokenizer *tokenizer, int32_t token)
{
    return in_range(tokenizer, token) && tokenizer->ends[token] != 0;
}

bool moe_tokenizer_is_control(const moe_tokenizer *tokenizer, int32_t token)
{
    return in_range(tokenizer, token) && (tokenizer->vocab.types[token] == MOE_TOKEN_CONTROL ||
                                          tokenizer->vocab.types[token] == MOE_TOKEN_UNKNOWN);
}

int32_t moe_tokenizer_find(const moe_tokenizer *tokenizer, const char *text, size_t size)
{
    const moe_vocab *vocab = &tokenizer->vocab;
    int32_t id = moe_special_match(vocab, &vocab->all_special, text, size);
    if (id != MOE_NO_TOKEN && moe_vocab_piece(vocab, id).size == size) {
        return id;
    }
    return moe_vocab_find(vocab, text, size);
}

moe_string_view moe_tokenizer_special(const moe_tokenizer *tokenizer, const char *begin)
{
    const moe_vocab *vocab = &tokenizer->vocab;
    const size_t size = strlen(begin);
    for (size_t i = 0; i < vocab->all_special.n; i++) {
        const moe_string_view piece = moe_vocab_piece(vocab, vocab->all_special.ids[i]);
        if (piece.size >= size && memcmp(piece.data, begin, size) == 0) {
            return piece;
        }
    }
    return (moe_string_view){"", 0};
}

moe_string_view moe_tokenizer_piece(const moe_tokenizer *tokenizer, int32_t token,
                                    bool with_control)
{
    if (!in_range(tokenizer, token) ||
        (!with_control && moe_tokenizer_is_control(tokenizer, token))) {
        return (moe_string_view){"", 0};
    }
    return moe_vocab_piece(&tokenizer->vocab, token);
}
