/* SPDX-License-Identifier: MIT */
/* Sessions that join and leave a batch at random write what they write alone; and every KV type is
 * one configuration of the model, with the same bits for any chunk and any neighbours. Usage:
 * test_batching ORACLE-FOLDER. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "engine_fixture.h"

#define N_STREAMS 12
#define MAX_WRITE 60

static const char *folder;

/* One timeline: a prompt of its own, written alone first, then in company. */
typedef struct stream {
    size_t n_prompt, n_write;
    int32_t prompt[120];
    int32_t expected[MAX_WRITE];
    moe_session *session; /* NULL: not in the batch */
    size_t n_written;
} stream;

typedef struct lottery {
    uint32_t state;
} lottery;

static uint32_t draw(lottery *l, uint32_t n)
{
    l->state = l->state * 1664525u + 1013904223u;
    return (l->state >> 8) % n;
}

static void make_streams(stream *streams, moe_engine *engine, uint32_t n_vocab, lottery *l)
{
    for (uint32_t i = 0; i < N_STREAMS; i++) {
        stream *s = &streams[i];
        s->n_prompt = 1 + draw(l, 119);
        s->n_write = 1 + draw(l, MAX_WRITE);
        make_prompt(s->prompt, s->n_prompt, n_vocab, 100 + i);
        moe_session *session = greedy_session(engine);
        feed(session, s->prompt, s->n_prompt);
        decode(engine, session, s->expected, s->n_write);
        moe_session_close(&session);
    }
}

static void take_and_check(stream *s)
{
    int32_t tokens[4];
    size_t n = moe_session_take(s->session, tokens, 4);
    for (size_t i = 0; i < n && s->n_written < s->n_write; i++) {
        assert_int_equal(tokens[i], s->expected[s->n_written]);
        s->n_written++;
    }
}

/* Joins when it is out, leaves when it is done or, rarely, in the middle. Returns true when a
 * whole stream has been written. */
static bool join_or_leave(stream *s, moe_engine *engine, lottery *l)
{
    if (s->session == NULL) {
        if (draw(l, 6) == 0) {
            s->session = greedy_session(engine);
            feed(s->session, s->prompt, s->n_prompt);
            s->n_written = 0;
        }
        return false;
    }
    bool done = s->n_written == s->n_write;
    if (done || draw(l, 80) == 0) {
        moe_session_close(&s->session);
    }
    return done;
}

static void joining_and_leaving(void **state)
{
    const char *name = *state;
    const int n_steps = strcmp(name, "olmoe-q8_0") == 0 ? 300 : 100;
    char path[1024];
    moe_engine_options options = oracle_options(path, folder, name);
    options.prefill_chunk = 33;
    options.expert_cache_share = 0.4;
    moe_engine *engine = open_engine(&options);
    moe_engine_info info = {.struct_size = sizeof info};
    moe_engine_get_info(engine, &info);
    lottery l = {7};
    static stream streams[N_STREAMS];
    memset(streams, 0, sizeof streams);
    make_streams(streams, engine, info.n_vocab, &l);
    size_t n_complete = 0;
    for (int i = 0; i < n_steps; i++) {
        moe_session *batch[N_STREAMS];
        stream *of[N_STREAMS];
        size_t n = 0;
        for (uint32_t k = 0; k < N_STREAMS; k++) {
            n_complete += join_or_leave(&streams[k], engine, &l);
            /* Those who sit a step out lose nothing. */
            if (streams[k].session != NULL && draw(&l, 4) != 0) {
                of[n] = &streams[k];
                batch[n++] = streams[k].session;
            }
        }
        moe_error error;
        if (moe_step(engine, batch, n, &error) != MOE_OK) {
            fail_msg("%s", error.message);
        }
        for (size_t k = 0; k < n; k++) {
            take_and_check(of[k]);
        }
    }
    for (uint32_t k = 0; k < N_STREAMS; k++) {
        moe_session_close(&streams[k].session);
    }
    moe_engine_close(&engine);
    print_message("%s: %zu streams written whole in company\n", name, n_complete);
    assert_true(n_complete >= (size_t)n_steps / 25);
}

static uint64_t hash_of(const void *data, size_t size, uint64_t hash)
{
    const uint8_t *bytes = data;
    for (size_t i = 0; i < size; i++) {
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    }
    return hash;
}

/* Tokens and last logits of a greedy run, alone or with three neighbours. */
static uint64_t run_hash(const moe_engine_options *options, size_t n_neighbours)
{
    moe_engine *engine = open_engine(options);
    moe_engine_info info = {.struct_size = sizeof info};
    moe_engine_get_info(engine, &info);
    moe_session *sessions[4];
    int32_t prompt[140];
    for (uint32_t i = 0; i <= n_neighbours; i++) {
        make_prompt(prompt, 140, info.n_vocab, 40 + i);
        sessions[i] = greedy_session(engine);
        feed(sessions[i], prompt, i == 0 ? 140 : 30 * i);
    }
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t n_taken = 0; n_taken < 12;) {
        assert_int_equal(moe_step(engine, sessions, n_neighbours + 1, NULL), MOE_OK);
        int32_t token;
        if (moe_session_take(sessions[0], &token, 1) == 1) {
            n_taken++;
            hash = hash_of(&token, sizeof token, hash);
            hash = hash_of(moe_session_logits(sessions[0]), info.n_vocab * sizeof(float), hash);
        }
    }
    for (uint32_t i = 0; i <= n_neighbours; i++) {
        moe_session_close(&sessions[i]);
    }
    moe_engine_close(&engine);
    return hash;
}

static void kv_types(void **state)
{
    const char *name = *state;
    char path[1024];
    moe_engine_options options = oracle_options(path, folder, name);
    uint64_t hashes[5];
    for (int type = MOE_KV_CACHE_F16; type <= MOE_KV_CACHE_F8; type++) {
        options.kv_cache = (moe_kv_cache_type)type;
        options.prefill_chunk = 64;
        moe_engine *engine = NULL;
        int status = moe_engine_open(&engine, &options, NULL);
        moe_engine_close(&engine);
        bool blocks = type == MOE_KV_CACHE_Q8_0 || type == MOE_KV_CACHE_Q4_0;
        if (status == MOE_ERR_UNSUPPORTED && blocks) {
            hashes[type] = 0;
            continue; /* head dimensions that are no multiples of 32 */
        }
        hashes[type] = run_hash(&options, 0);
        assert_true(hashes[type] == run_hash(&options, 3));
        options.prefill_chunk = 5;
        assert_true(hashes[type] == run_hash(&options, 0));
        assert_true(hashes[type] == run_hash(&options, 3));
    }
    for (int type = MOE_KV_CACHE_F32; type <= MOE_KV_CACHE_F8; type++) {
        assert_true(hashes[0] != hashes[type]);
        assert_true(strcmp(name, "qwen3moe") != 0 || hashes[type] != 0);
    }
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: test_batching ORACLE-FOLDER\n");
        return 2;
    }
    folder = argv[1];
    const struct CMUnitTest tests[] = {
        {"joining and leaving: olmoe", joining_and_leaving, NULL, NULL, (void *)"olmoe-q8_0"},
        {"joining and leaving: deepseek2", joining_and_leaving, NULL, NULL, (void *)"deepseek2-v3"},
        {"KV types: qwen3moe", kv_types, NULL, NULL, (void *)"qwen3moe"},
        {"KV types: deepseek2", kv_types, NULL, NULL, (void *)"deepseek2-v3"},
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
