/* SPDX-License-Identifier: MIT */
/* Writes the continuation of a prompt, as it comes.
 * Usage: stream MODEL.gguf PROMPT [TOKENS] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <moe/moe.h>

/* Samples and prints until n tokens are written, the model ends the text or the context is full. */
static int stream(moe_engine *engine, moe_session *session, long n, moe_error *err)
{
    moe_text *text;
    size_t size;
    int status = moe_text_create(&text, engine, err);
    while (status == MOE_OK && n > 0 && !moe_session_is_full(session)) {
        int32_t token;
        status = moe_step(engine, &session, 1, err);
        if (status != MOE_OK || moe_session_take(session, &token, 1) == 0) {
            continue; /* a long prompt takes several passes before the first token */
        }
        if (moe_token_is_end(engine, token)) {
            break;
        }
        const char *bytes = moe_text_push(text, token, &size);
        fwrite(bytes, 1, size, stdout);
        fflush(stdout);
        n--;
    }
    if (status == MOE_OK) {
        puts(moe_text_finish(text, &size));
    }
    moe_text_close(&text);
    return status;
}

int main(int argc, char **argv)
{
    moe_engine_options options;
    moe_engine *engine = NULL;
    moe_session *session = NULL;
    int32_t *tokens = NULL;
    size_t n_tokens;
    moe_error err = {""};
    if (argc < 3) {
        fprintf(stderr, "usage: stream MODEL.gguf PROMPT [TOKENS]\n");
        return 2;
    }
    moe_engine_options_init(&options);
    options.model_path = argv[1];
    int status = moe_engine_open(&engine, &options, &err);
    if (status == MOE_OK) {
        status = moe_session_create(&session, engine, NULL, &err);
    }
    if (status == MOE_OK) {
        status = moe_tokenize(engine, argv[2], strlen(argv[2]), MOE_TOKENIZE_ADD_SPECIAL, &tokens,
                              &n_tokens, &err);
    }
    if (status == MOE_OK) {
        status = moe_session_feed(session, tokens, n_tokens, &err);
    }
    if (status == MOE_OK) {
        status = stream(engine, session, argc > 3 ? atol(argv[3]) : 100, &err);
    }
    if (status != MOE_OK) {
        fprintf(stderr, "stream: %s\n", err.message);
    }
    moe_free(tokens);
    moe_session_close(&session);
    moe_engine_close(&engine);
    return status == MOE_OK ? 0 : 1;
}
