/* SPDX-License-Identifier: MIT */
/* Continues several prompts as one batch: a row of each in every pass, and an expert that two of
 * them need is read once. Usage: batch MODEL.gguf PROMPT... */
#include <stdio.h>
#include <string.h>

#include <moe/moe.h>

#define TOKENS_EACH 24

static int start(moe_session **session, moe_engine *engine, const char *prompt, moe_error *err)
{
    moe_session_options options;
    int32_t *tokens = NULL;
    size_t n;
    moe_session_options_init(&options);
    options.sampling.temperature = 0;
    int status = moe_session_create(session, engine, &options, err);
    if (status == MOE_OK) {
        status = moe_tokenize(engine, prompt, strlen(prompt), MOE_TOKENIZE_ADD_SPECIAL, &tokens, &n,
                              err);
    }
    if (status == MOE_OK) {
        status = moe_session_feed(*session, tokens, n, err);
    }
    moe_free(tokens);
    return status;
}

static void print_tokens(const moe_engine *engine, const int32_t *tokens, size_t n)
{
    for (size_t i = 0; i < n && !moe_token_is_end(engine, tokens[i]); i++) {
        size_t size;
        const char *piece = moe_token_piece(engine, tokens[i], false, &size);
        fwrite(piece, 1, size, stdout);
    }
    printf("\n---\n");
}

/* Sessions leave the batch as they finish. */
static int run(moe_engine *engine, moe_session **sessions, char **prompts, size_t n, moe_error *err)
{
    moe_session *active[64];
    int32_t tokens[TOKENS_EACH];
    size_t first[64]; /* tokens of the prompts */
    for (size_t i = 0; i < n; i++) {
        first[i] = moe_session_n_tokens(sessions[i]);
    }
    for (;;) {
        size_t n_active = 0;
        for (size_t i = 0; i < n; i++) {
            if (moe_session_n_tokens(sessions[i]) < first[i] + TOKENS_EACH &&
                !moe_session_is_full(sessions[i])) {
                active[n_active++] = sessions[i];
            }
        }
        if (n_active == 0) {
            break;
        }
        int status = moe_step(engine, active, n_active, err);
        if (status != MOE_OK) {
            return status;
        }
    }
    for (size_t i = 0; i < n; i++) {
        printf("%s|", prompts[i]);
        print_tokens(engine, tokens, moe_session_take(sessions[i], tokens, TOKENS_EACH));
    }
    return MOE_OK;
}

int main(int argc, char **argv)
{
    moe_engine_options options;
    moe_engine *engine = NULL;
    moe_session *sessions[64] = {NULL};
    moe_error err = {""};
    size_t n = (size_t)argc - 2;
    if (argc < 3 || n > 64) {
        fprintf(stderr, "usage: batch MODEL.gguf PROMPT... (1 to 64)\n");
        return 2;
    }
    moe_engine_options_init(&options);
    options.model_path = argv[1];
    int status = moe_engine_open(&engine, &options, &err);
    for (size_t i = 0; i < n && status == MOE_OK; i++) {
        status = start(&sessions[i], engine, argv[i + 2], &err);
    }
    if (status == MOE_OK) {
        status = run(engine, sessions, argv + 2, n, &err);
    }
    for (size_t i = 0; i < n; i++) {
        moe_session_close(&sessions[i]);
    }
    moe_engine_close(&engine);
    if (status != MOE_OK) {
        fprintf(stderr, "batch: %s\n", err.message);
    }
    return status == MOE_OK ? 0 : 1;
}
