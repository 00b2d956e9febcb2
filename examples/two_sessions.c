/* SPDX-License-Identifier: MIT */
/* Two people share one model under one memory budget. Both texts come as they are written, a line a
 * piece; the second person stops reading after a few tokens and a thread cancels that session,
 * while the first goes on. Usage: two_sessions MODEL.gguf BUDGET_MIB PROMPT PROMPT [TOKENS] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <threads.h>

#include <moe/moe.h>

#define TOKENS_UNTIL_CANCEL 4

typedef struct reader {
    moe_session *session;
    moe_text *text; /* turns tokens into whole characters */
    long n_tokens;
    bool done;
} reader;

static int start(reader *r, moe_engine *engine, const char *prompt, moe_error *err)
{
    moe_session_options options;
    int32_t *tokens = NULL;
    size_t n;
    moe_session_options_init(&options);
    options.sampling.temperature = 0;
    int status = moe_session_create(&r->session, engine, &options, err);
    if (status == MOE_OK) {
        status = moe_text_create(&r->text, engine, err);
    }
    if (status == MOE_OK) {
        status = moe_tokenize(engine, prompt, strlen(prompt), MOE_TOKENIZE_ADD_SPECIAL, &tokens, &n,
                              err);
    }
    if (status == MOE_OK) {
        status = moe_session_feed(r->session, tokens, n, err);
    }
    moe_free(tokens);
    return status;
}

static void print_piece(int person, const char *piece, size_t size)
{
    if (size > 0) {
        printf("%d: %.*s\n", person, (int)size, piece);
        fflush(stdout);
    }
}

/* Prints what the step wrote in this session. */
static void stream(reader *r, const moe_engine *engine, int person, long most)
{
    int32_t token;
    size_t size;
    while (moe_session_take(r->session, &token, 1) > 0) {
        const char *piece = moe_text_push(r->text, token, &size);
        print_piece(person, piece, size);
        r->n_tokens++;
        r->done = r->done || moe_token_is_end(engine, token) || r->n_tokens >= most;
    }
    r->done = r->done || moe_session_is_full(r->session);
    if (r->done) {
        const char *rest = moe_text_finish(r->text, &size);
        print_piece(person, rest, size);
    }
}

static int cancel(void *session)
{
    moe_session_cancel(session);
    return 0;
}

/* Steps both until they are done. A cancelled session is left out of its step and reports it. */
static int run(moe_engine *engine, reader readers[2], long most, moe_error *err)
{
    bool asked = false;
    thrd_t thread;
    for (;;) {
        moe_session *active[2];
        size_t n = 0;
        for (int i = 0; i < 2; i++) {
            if (!readers[i].done) {
                active[n++] = readers[i].session;
            }
        }
        if (n == 0) {
            return MOE_OK;
        }
        int status = moe_step(engine, active, n, err);
        if (status != MOE_OK && status != MOE_ERR_CANCELLED) {
            return status;
        }
        for (int i = 0; i < 2; i++) {
            if (!readers[i].done) {
                stream(&readers[i], engine, i + 1, most);
            }
        }
        if (asked && !readers[1].done && moe_session_was_cancelled(readers[1].session)) {
            printf("2: [cancelled after %ld tokens]\n", readers[1].n_tokens);
            readers[1].done = true;
        }
        if (!asked && readers[1].n_tokens >= TOKENS_UNTIL_CANCEL && !readers[1].done) {
            asked = thrd_create(&thread, cancel, readers[1].session) == thrd_success;
            if (asked) {
                thrd_join(thread, NULL);
            }
        }
    }
}

int main(int argc, char **argv)
{
    moe_engine_options options;
    moe_engine *engine = NULL;
    reader readers[2] = {{NULL, NULL, 0, false}, {NULL, NULL, 0, false}};
    moe_error err = {""};
    if (argc < 5) {
        fprintf(stderr, "usage: two_sessions MODEL.gguf BUDGET_MIB PROMPT PROMPT [TOKENS]\n");
        return 2;
    }
    moe_engine_options_init(&options);
    options.model_path = argv[1];
    options.host_memory = strtoull(argv[2], NULL, 10) << 20;
    int status = moe_engine_open(&engine, &options, &err);
    for (int i = 0; i < 2 && status == MOE_OK; i++) {
        status = start(&readers[i], engine, argv[3 + i], &err);
    }
    if (status == MOE_OK) {
        status = run(engine, readers, argc > 5 ? atol(argv[5]) : 32, &err);
    }
    if (status != MOE_OK) {
        fprintf(stderr, "two_sessions: %s\n", err.message);
    }
    for (int i = 0; i < 2; i++) {
        moe_text_close(&readers[i].text);
        moe_session_close(&readers[i].session);
    }
    moe_engine_close(&engine);
    return status == MOE_OK ? 0 : 1;
}
