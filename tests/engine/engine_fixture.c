/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "engine_fixture.h"

void make_prompt(int32_t *tokens, size_t n, uint32_t n_vocab, uint32_t seed)
{
    uint32_t state = seed * 2654435761u + 12345u;
    for (size_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        tokens[i] = (int32_t)((state >> 8) % n_vocab);
    }
}

moe_engine_options fixture_options(const char *path, uint32_t prefill_chunk, uint32_t context)
{
    moe_engine_options options;
    moe_engine_options_init(&options);
    options.model_path = path;
    options.n_threads = 2;
    options.prefill_chunk = prefill_chunk;
    options.context = context;
    return options;
}

moe_engine_options oracle_options(char *path, const char *folder, const char *name)
{
    snprintf(path, 1024, "%s/%s/model.gguf", folder, name);
    return fixture_options(path, 64, 512);
}

moe_engine *open_engine(const moe_engine_options *options)
{
    moe_engine *engine = NULL;
    moe_error error;
    if (moe_engine_open(&engine, options, &error) != MOE_OK) {
        fail_msg("%s", error.message);
    }
    return engine;
}

moe_session *greedy_session(moe_engine *engine)
{
    moe_session_options options;
    moe_session_options_init(&options);
    options.sampling.temperature = 0.0f;
    moe_session *session = NULL;
    assert_int_equal(moe_session_create(&session, engine, &options, NULL), MOE_OK);
    return session;
}

void feed(moe_session *session, const int32_t *tokens, size_t n)
{
    assert_int_equal(moe_session_feed(session, tokens, n, NULL), MOE_OK);
}

void decode(moe_engine *engine, moe_session *session, int32_t *out, size_t n)
{
    for (size_t done = 0; done < n;) {
        moe_error error;
        if (moe_step(engine, &session, 1, &error) != MOE_OK) {
            fail_msg("%s", error.message);
        }
        size_t n_taken = moe_session_take(session, out + done, n - done);
        assert_true(n_taken > 0 || moe_session_n_pending(session) > 0);
        done += n_taken;
    }
}
