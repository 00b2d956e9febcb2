/* SPDX-License-Identifier: MIT */
#include "tests/faults/fault_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <moe/moe.h>

#include "runtime/cli_base/cli_hash.h"

/* Steps until all tokens are there. */
static int write_tokens(fault_text *t, moe_engine *engine, const int32_t *prompt, size_t n,
                        moe_error *err)
{
    moe_session_options options;
    moe_session *session = NULL;
    moe_session_options_init(&options);
    options.sampling.temperature = 0.0f;
    int status = moe_session_create(&session, engine, &options, err);
    status = status == MOE_OK ? moe_session_feed(session, prompt, n, err) : status;
    for (size_t taken = 0; status == MOE_OK && taken < FAULT_TEXT_TOKENS;) {
        status = moe_step(engine, &session, 1, err);
        taken += moe_session_take(session, t->tokens + taken, FAULT_TEXT_TOKENS - taken);
    }
    moe_session_close(&session);
    return status;
}

static int spell(fault_text *t, moe_engine *engine, moe_error *err)
{
    moe_text *decoder = NULL;
    int status = moe_text_create(&decoder, engine, err);
    for (size_t i = 0; i < FAULT_TEXT_TOKENS && status == MOE_OK; i++) {
        size_t size;
        const char *piece = moe_text_push(decoder, t->tokens[i], &size);
        size_t room = FAULT_TEXT_BYTES - t->ends[i];
        memcpy(t->text + t->ends[i], piece, size < room ? size : room);
        t->ends[i + 1] = t->ends[i] + (size < room ? size : room);
    }
    moe_text_close(&decoder);
    return status;
}

bool fault_text_make(fault_text *text, const char *model, const char *prompt)
{
    moe_engine_options options;
    moe_engine *engine = NULL;
    moe_error err = {""};
    int32_t *tokens = NULL;
    size_t n = 0;
    memset(text, 0, sizeof *text);
    moe_engine_options_init(&options);
    options.model_path = model;
    options.device = "cpu";
    options.calibration = "none";
    options.context = 256;
    int status = moe_engine_open(&engine, &options, &err);
    if (status == MOE_OK) {
        status =
            moe_tokenize(engine, prompt, strlen(prompt),
                         MOE_TOKENIZE_ADD_SPECIAL | MOE_TOKENIZE_PARSE_SPECIAL, &tokens, &n, &err);
    }
    status = status == MOE_OK ? write_tokens(text, engine, tokens, n, &err) : status;
    status = status == MOE_OK ? spell(text, engine, &err) : status;
    moe_free(tokens);
    moe_engine_close(&engine);
    if (status != MOE_OK) {
        printf("the library, without faults: %s\n", err.message);
    }
    return status == MOE_OK;
}

/* Whether the bytes are the text of from to `to` tokens. */
static bool is_text_of(const fault_text *t, const char *bytes, size_t size, size_t from, size_t to)
{
    bool fits = false;
    for (size_t i = from; i <= to; i++) {
        fits = fits || (t->ends[i] == size && memcmp(bytes, t->text, size) == 0);
    }
    return fits;
}

/* The value behind a key of the statistics; NULL: there is no such key. */
static const char *value_of(const char *told, const char *key)
{
    const char *at = strstr(told, key);
    return at == NULL ? NULL : at + strlen(key) + strspn(at + strlen(key), "\": ");
}

const char *fault_text_judge(const fault_text *t, const char *bytes, size_t size, const char *told,
                             bool ended, bool *knows_tokens)
{
    char hash[CLI_HASH_HEX_SIZE];
    const char *number = value_of(told, "\"decode_tokens\"");
    const char *digits = value_of(told, "\"tokens_xxh128\"");
    *knows_tokens = number != NULL && digits != NULL;
    if (!*knows_tokens) {
        return is_text_of(t, bytes, size, 0, FAULT_TEXT_TOKENS) ? NULL : "wrong text";
    }
    size_t n = strtoul(number, NULL, 10);
    if (n > FAULT_TEXT_TOKENS) {
        return "too many tokens";
    }
    cli_hash_tokens(t->tokens, n, hash);
    if (strncmp(hash, digits, sizeof hash - 1) != 0) {
        return "wrong tokens";
    }
    /* Of the last token's text an error may have come in the way. */
    return is_text_of(t, bytes, size, ended || n == 0 ? n : n - 1, n) ? NULL : "wrong text";
}
