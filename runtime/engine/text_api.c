/* SPDX-License-Identifier: MIT */
/* The text functions of the public interface, a thin layer over the tokenizer; and the part of
 * opening an engine that texts need, which is all that a vocabulary alone needs. */
#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "offload/model_open.h"
#include "runtime/engine/engine_parts.h"
#include "runtime/model/override_check.h"

/* ---- Opening ---- */

/* Copies the text under a key; *copy is NULL if the file has no such text. */
static int read_text(char **copy, const moe_gguf *gguf, const char *key, moe_error *err)
{
    moe_string_view text = {NULL, 0};
    (void)moe_gguf_get_string(gguf, key, &text, NULL);
    if (text.data == NULL) {
        return MOE_OK;
    }
    *copy = moe_calloc(text.size + 1, 1);
    if (*copy == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for %s", key);
    }
    memcpy(*copy, text.data, text.size);
    return MOE_OK;
}

/* A model without a vocabulary can still run on token ids. */
int moe_engine_open_texts(moe_engine *engine, moe_error *err)
{
    int status = read_text(&engine->model_name, engine->gguf, "general.name", err);
    if (status == MOE_OK && engine->model_name == NULL) {
        engine->model_name = moe_strdup("");
        status = engine->model_name != NULL
                     ? MOE_OK
                     : moe_fail(err, MOE_ERR_MEMORY, "no memory for the model's name");
    }
    if (status == MOE_OK) {
        status = read_text(&engine->chat_template, engine->gguf, "tokenizer.chat_template", err);
    }
    if (status != MOE_OK || moe_gguf_find(engine->gguf, "tokenizer.ggml.model") == NULL) {
        return status;
    }
    return moe_tokenizer_create(&engine->tokenizer, engine->gguf, err);
}

int moe_engine_open_vocabulary(moe_engine *engine, const moe_engine_options *o, moe_error *err)
{
    engine->model_path = moe_strdup(o->model_path);
    if (engine->model_path == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for a vocabulary");
    }
    int status = moe_engine_check_timeout(o, err);
    if (status == MOE_OK) {
        moe_engine_set_reading(engine, o);
        status = moe_model_open(&engine->gguf, o->model_path, &engine->reading, err);
    }
    if (status == MOE_OK) {
        status =
            moe_gguf_override(engine->gguf, o->metadata_overrides, o->n_metadata_overrides, err);
    }
    if (status == MOE_OK) {
        status = moe_overrides_check(engine->gguf, NULL, o->metadata_overrides,
                                     o->n_metadata_overrides, err);
    }
    if (status == MOE_OK) {
        status = moe_engine_open_texts(engine, err);
    }
    return status;
}

int moe_engine_need_model(const moe_engine *engine, const char *what, moe_error *err)
{
    if (engine->experts_only) {
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s needs the model, and of %s the experts alone were opened; open it "
                        "without experts_only",
                        what, engine->model_path);
    }
    return engine->device != NULL
               ? MOE_OK
               : moe_fail(err, MOE_ERR_UNSUPPORTED,
                          "%s needs the model, and of %s the vocabulary alone was opened; open it "
                          "without vocabulary_only",
                          what, engine->model_path);
}

/* ---- Texts ---- */

int moe_engine_need_tokenizer(const moe_engine *engine, moe_error *err)
{
    if (engine->tokenizer == NULL) {
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "%s has no tokenizer; give token ids instead",
                        engine->model_path);
    }
    return MOE_OK;
}

int moe_tokenize(const moe_engine *engine, const char *text, size_t size, unsigned flags,
                 int32_t **tokens, size_t *n_tokens, moe_error *err)
{
    return moe_tokenize_within(engine, text, size, flags, tokens, n_tokens, NULL, err);
}

int moe_tokenize_within(const moe_engine *engine, const char *text, size_t size, unsigned flags,
                        int32_t **tokens, size_t *n_tokens, moe_allowance *allowance,
                        moe_error *err)
{
    if (engine == NULL || (text == NULL && size > 0) || tokens == NULL || n_tokens == NULL) {
        return moe_fail_null(err, "moe_tokenize", "engine, text, tokens or n_tokens");
    }
    *tokens = NULL;
    *n_tokens = 0;
    MOE_TRY(moe_engine_need_tokenizer(engine, err));
    return moe_tokenizer_encode_within(engine->tokenizer, text, size, flags, tokens, n_tokens,
                                       allowance, err);
}

const char *moe_token_piece(const moe_engine *engine, int32_t token, bool with_control,
                            size_t *size)
{
    moe_string_view piece = {"", 0};
    if (engine != NULL && engine->tokenizer != NULL) {
        piece = moe_tokenizer_piece(engine->tokenizer, token, with_control);
    }
    if (size != NULL) {
        *size = piece.size;
    }
    return piece.data;
}

bool moe_token_is_end(const moe_engine *engine, int32_t token)
{
    return engine != NULL && engine->tokenizer != NULL &&
           moe_tokenizer_is_end(engine->tokenizer, token);
}

struct moe_text {
    const moe_engine *engine; /* held */
    const moe_tokenizer *tokenizer;
    moe_text_stream stream;
    char buffer[]; /* moe_text_stream_max() + 1 */
};

int moe_text_create(moe_text **out, const moe_engine *engine, moe_error *err)
{
    if (out != NULL) {
        *out = NULL;
    }
    if (out == NULL || engine == NULL) {
        return moe_fail_null(err, "moe_text_create", "out or engine");
    }
    MOE_TRY(moe_engine_need_tokenizer(engine, err));
    size_t longest = moe_text_stream_max(engine->tokenizer);
    moe_text *text = moe_calloc(1, sizeof *text + (longest < 4 ? 4 : longest) + 1);
    if (text == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for a text stream");
    }
    text->engine = engine;
    moe_engine_hold(engine);
    text->tokenizer = engine->tokenizer;
    *out = text;
    return MOE_OK;
}

void moe_text_close(moe_text **text)
{
    if (text != NULL && *text != NULL) {
        const moe_engine *engine = (*text)->engine;
        free(*text);
        *text = NULL;
        moe_engine_release(engine);
    }
}

static const char *terminate(moe_text *text, size_t n, size_t *size)
{
    text->buffer[n] = '\0';
    if (size != NULL) {
        *size = n;
    }
    return text->buffer;
}

static const char *without_text(size_t *size)
{
    if (size != NULL) {
        *size = 0;
    }
    return "";
}

const char *moe_text_push(moe_text *text, int32_t token, size_t *size)
{
    if (text == NULL) {
        return without_text(size);
    }
    size_t n = moe_text_stream_push(&text->stream, text->tokenizer, token, text->buffer);
    return terminate(text, n, size);
}

const char *moe_text_finish(moe_text *text, size_t *size)
{
    if (text == NULL) {
        return without_text(size);
    }
    size_t n = moe_text_stream_finish(&text->stream, text->buffer);
    text->stream = (moe_text_stream){0};
    return terminate(text, n, size);
}
