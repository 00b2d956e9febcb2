/* SPDX-License-Identifier: MIT */
/* Cancels a generation from another thread, and goes on with the same session afterwards.
 * Usage: cancel MODEL.gguf PROMPT [MILLISECONDS] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <threads.h>
#include <time.h>

#include <moe/moe.h>

typedef struct alarm_clock {
    moe_session *session;
    long milliseconds;
} alarm_clock;

static int cancel_later(void *arg)
{
    const alarm_clock *clock = arg;
    struct timespec delay = {clock->milliseconds / 1000, clock->milliseconds % 1000 * 1000000};
    thrd_sleep(&delay, NULL);
    moe_session_cancel(clock->session);
    return 0;
}

static int open_session(moe_engine **engine, moe_session **session, char **argv, moe_error *err)
{
    moe_engine_options options;
    int32_t *tokens = NULL;
    size_t n;
    moe_engine_options_init(&options);
    options.model_path = argv[1];
    int status = moe_engine_open(engine, &options, err);
    if (status == MOE_OK) {
        status = moe_session_create(session, *engine, NULL, err);
    }
    if (status == MOE_OK) {
        status = moe_tokenize(*engine, argv[2], strlen(argv[2]), MOE_TOKENIZE_ADD_SPECIAL, &tokens,
                              &n, err);
    }
    if (status == MOE_OK) {
        status = moe_session_feed(*session, tokens, n, err);
    }
    moe_free(tokens);
    return status;
}

int main(int argc, char **argv)
{
    moe_engine *engine = NULL;
    moe_session *session = NULL;
    moe_error err = {""};
    thrd_t thread;
    if (argc < 3) {
        fprintf(stderr, "usage: cancel MODEL.gguf PROMPT [MILLISECONDS]\n");
        return 2;
    }
    int status = open_session(&engine, &session, argv, &err);
    alarm_clock clock = {session, argc > 3 ? atol(argv[3]) : 200};
    if (status == MOE_OK && thrd_create(&thread, cancel_later, &clock) == thrd_success) {
        size_t passes = 0;
        while (status == MOE_OK) {
            status = moe_step(engine, &session, 1, &err);
            passes++;
            /* The context may be shorter than the delay: start it over. */
            if (status == MOE_OK && moe_session_is_full(session)) {
                status = moe_session_truncate(session, 1, &err);
            }
        }
        thrd_join(thread, NULL);
        printf("%s after %zu passes, %zu tokens on the timeline\n", moe_status_name(status), passes,
               moe_session_n_tokens(session));
    }
    if (status == MOE_ERR_CANCELLED) {
        status = moe_step(engine, &session, 1, &err);
        printf("the next step: %s, %zu tokens\n", moe_status_name(status),
               moe_session_n_tokens(session));
    }
    if (status != MOE_OK) {
        fprintf(stderr, "cancel: %s\n", err.message);
    }
    moe_session_close(&session);
    moe_engine_close(&engine);
    return status == MOE_OK ? 0 : 1;
}
