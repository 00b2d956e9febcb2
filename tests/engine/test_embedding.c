/* SPDX-License-Identifier: MIT */
/* Hidden states and embeddings. The oracle: the head times a hidden state must be the reference
 * implementation's logits, and a head of more rows than columns leaves no other hidden state. They
 * are the same bits for any chunk, panel, cache and batch.
 * Usage: test_embedding ORACLE-FOLDER */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <moe/embedding.h>

#include "npy_file.h"
#include "runtime/engine/engine_state.h"
#include "runtime/model/gguf.h"
#include "tests/engine/engine_fixture.h"

enum { N_TEXTS = 7, LONGEST = 150, MOST_TOKENS = N_TEXTS * LONGEST, MOST_WIDTH = 1024 };

static const size_t lengths[N_TEXTS] = {3, 1, 150, 40, 12, 64, 9};
static const char *oracle_folder;

/* ---- The oracle ---- */

/* The head's rows: [n_vocab][n_embd]. */
static float *read_head(const char *path, size_t n)
{
    moe_gguf *gguf = NULL;
    moe_error error = {""};
    if (moe_gguf_open(&gguf, path, &error) != MOE_OK) {
        fail_msg("%s", error.message);
    }
    const moe_gguf_tensor *head = moe_gguf_find_tensor(gguf, "output.weight");
    head = head != NULL ? head : moe_gguf_find_tensor(gguf, "token_embd.weight"); /* tied */
    assert_non_null(head);
    assert_int_equal(head->size, n * sizeof(float));
    float *weights = malloc(head->size);
    FILE *file = fopen(path, "rb");
    assert_int_equal(fseek(file, (long)head->offset, SEEK_SET), 0);
    assert_int_equal(fread(weights, 1, head->size, file), head->size);
    fclose(file);
    moe_gguf_close(&gguf);
    return weights;
}

typedef struct comparison {
    const float *head, *expected;
    const int *kept;
    size_t n_kept, next, n_vocab, n_embd, n_seen;
    double most, delta;
} comparison;

static void compare(size_t position, const float *hidden, const float *logits, void *user)
{
    comparison *c = user;
    (void)logits;
    assert_int_equal(position, c->n_seen++);
    if (c->next == c->n_kept || (size_t)c->kept[c->next] != position) {
        return;
    }
    const float *expected = c->expected + c->next++ * c->n_vocab;
    for (size_t v = 0; v < c->n_vocab; v++) {
        double sum = 0.0;
        for (size_t i = 0; i < c->n_embd; i++) {
            sum += (double)c->head[v * c->n_embd + i] * (double)hidden[i];
        }
        c->delta = fmax(c->delta, fabs(sum - (double)expected[v]));
        c->most = fmax(c->most, fabs((double)expected[v]));
    }
}

static void evaluate(moe_engine *engine, moe_session *session)
{
    moe_error error = {""};
    while (moe_session_n_pending(session) > 0) {
        if (moe_step(engine, &session, 1, &error) != MOE_OK) {
            fail_msg("%s", error.message);
        }
    }
}

static void check_model(const char *name, int number)
{
    char path[1024], file[1200];
    moe_engine_options options = oracle_options(path, oracle_folder, name);
    options.kv_cache = MOE_KV_CACHE_F32;
    moe_engine *engine = open_engine(&options);
    comparison c = {.n_embd = engine->config.n_embd};
    snprintf(file, sizeof file, "%s/%s/%d.logits.npy", oracle_folder, name, number);
    float *expected = npy_read(file, &c.n_kept, &c.n_vocab);
    snprintf(file, sizeof file, "%s/%s/%d.positions.txt", oracle_folder, name, number);
    size_t n_kept, n;
    int *kept = ints_read(file, 0, &n_kept);
    snprintf(file, sizeof file, "%s/%s/prompts.txt", oracle_folder, name);
    int *prompt = ints_read(file, number, &n);
    assert_true(expected != NULL && kept != NULL && prompt != NULL && n_kept == c.n_kept);
    assert_true(c.n_vocab > c.n_embd);
    float *head = read_head(path, c.n_vocab * c.n_embd);
    c.head = head;
    c.expected = expected;
    c.kept = kept;
    moe_session *session = greedy_session(engine);
    assert_int_equal(moe_session_watch(session, compare, &c, NULL), MOE_OK);
    feed(session, prompt, n);
    evaluate(engine, session);
    assert_int_equal(c.n_seen, n);
    assert_int_equal(c.next, c.n_kept);
    if (!(c.delta <= 1e-4 * c.most)) {
        fail_msg("%s, case %d: the head times hidden states differs by %g of %g", name, number,
                 c.delta, c.most);
    }
    moe_session_close(&session);
    moe_engine_close(&engine);
    free(expected);
    free(kept);
    free(prompt);
    free(head);
}

static void the_reference(void **state)
{
    static const char *const names[] = {"qwen3moe", "olmoe", "mixtral", "deepseek2-v3", "jamba"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        for (int number = 0; number < 3; number++) {
            check_model(names[i], number);
        }
    }
}

/* ---- Exactness ---- */

static void make_texts(const moe_engine *engine, int32_t *tokens)
{
    for (size_t i = 0; i < N_TEXTS; i++) {
        make_prompt(tokens, lengths[i], engine->config.n_vocab, (uint32_t)i + 1);
        tokens += lengths[i];
    }
}

static void embed(const moe_engine_options *options, moe_pooling pooling, bool normalize,
                  float *embeddings, uint32_t *n_embd)
{
    int32_t tokens[MOST_TOKENS];
    moe_error error = {""};
    moe_engine_stats before = {.struct_size = sizeof before}, after = before;
    moe_engine *engine = open_engine(options);
    make_texts(engine, tokens);
    moe_engine_get_stats(engine, &before);
    if (moe_embed(engine, tokens, lengths, N_TEXTS, pooling, normalize, embeddings, &error) !=
        MOE_OK) {
        fail_msg("%s", error.message);
    }
    moe_engine_get_stats(engine, &after);
    assert_int_equal(after.session_bytes, before.session_bytes);
    *n_embd = engine->config.n_embd;
    moe_engine_close(&engine);
}

static void same_everywhere(void **state)
{
    static const char *const names[] = {"qwen3moe", "jamba", "gpt-oss"};
    static const struct {
        uint32_t chunk, panel, threads;
        double cache;
        const char *device;
    } cases[] = {{5, 5, 2, 0, NULL},
                 {16, 1000, 2, 0, NULL},
                 {64, 1000, 1, 0.3, NULL},
                 {512, 512, 2, 0.3, NULL},
                 {16, 16, 1, 0, "sim:memory=40M,link=20GB/s,latency=1us"}};
    static float expected[N_TEXTS * MOST_WIDTH], found[N_TEXTS * MOST_WIDTH];
    (void)state;
    for (size_t m = 0; m < sizeof names / sizeof names[0]; m++) {
        char path[1024];
        uint32_t n_embd;
        for (int pooling = 0; pooling < 2; pooling++) {
            moe_engine_options options = oracle_options(path, oracle_folder, names[m]);
            embed(&options, (moe_pooling)pooling, true, expected, &n_embd);
            assert_true(n_embd <= MOST_WIDTH);
            for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
                options.prefill_chunk = cases[i].chunk;
                options.panel = cases[i].panel;
                options.n_threads = cases[i].threads;
                options.expert_cache_share = cases[i].cache;
                options.device = cases[i].device;
                embed(&options, (moe_pooling)pooling, true, found, &n_embd);
                if (memcmp(found, expected, N_TEXTS * n_embd * sizeof(float)) != 0) {
                    fail_msg("%s, pooling %d: case %zu gives other embeddings", names[m], pooling,
                             i);
                }
            }
        }
    }
}

/* ---- Pooling ---- */

typedef struct kept_states {
    float *states;
    uint32_t n_embd;
    size_t n;
} kept_states;

static void keep(size_t position, const float *hidden, const float *logits, void *user)
{
    kept_states *k = user;
    (void)logits;
    assert_int_equal(position, k->n);
    memcpy(k->states + k->n++ * k->n_embd, hidden, k->n_embd * sizeof *hidden);
}

static void check_pooled(const kept_states *k, const float *mean, const float *last,
                         const float *unit)
{
    double squares = 0.0, length = 0.0;
    for (uint32_t i = 0; i < k->n_embd; i++) {
        double sum = 0.0;
        for (size_t p = 0; p < k->n; p++) {
            sum += (double)k->states[p * k->n_embd + i];
        }
        assert_true(fabs((double)mean[i] - sum / (double)k->n) <=
                    1e-6 * (1 + fabs((double)mean[i])));
        assert_true(last[i] == k->states[(k->n - 1) * k->n_embd + i]);
        squares += (double)mean[i] * (double)mean[i];
        length += (double)unit[i] * (double)unit[i];
    }
    assert_true(fabs(length - 1.0) < 1e-5);
    for (uint32_t i = 0; i < k->n_embd; i++) {
        assert_true(fabs((double)unit[i] - (double)mean[i] / sqrt(squares)) < 1e-6);
    }
}

static void pooled(void **state)
{
    char path[1024];
    int32_t tokens[MOST_TOKENS];
    static float mean[N_TEXTS * MOST_WIDTH], last[N_TEXTS * MOST_WIDTH], unit[N_TEXTS * MOST_WIDTH],
        states[LONGEST * MOST_WIDTH];
    uint32_t n_embd;
    (void)state;
    moe_engine_options options = oracle_options(path, oracle_folder, "qwen3moe");
    embed(&options, MOE_POOLING_MEAN, false, mean, &n_embd);
    embed(&options, MOE_POOLING_MEAN, true, unit, &n_embd);
    embed(&options, MOE_POOLING_LAST, false, last, &n_embd);
    moe_engine *engine = open_engine(&options);
    make_texts(engine, tokens);
    for (size_t i = 0, at = 0; i < N_TEXTS; at += lengths[i++]) {
        kept_states k = {states, n_embd, 0};
        moe_session *session = greedy_session(engine);
        assert_int_equal(moe_session_watch(session, keep, &k, NULL), MOE_OK);
        feed(session, tokens + at, lengths[i]);
        evaluate(engine, session);
        assert_int_equal(k.n, lengths[i]);
        check_pooled(&k, mean + i * n_embd, last + i * n_embd, unit + i * n_embd);
        moe_session_close(&session);
    }
    moe_engine_close(&engine);
}

/* ---- What is told, and errors ---- */

static void count(size_t position, const float *hidden, const float *logits, void *user)
{
    size_t *next = user;
    (void)hidden;
    (void)logits;
    assert_int_equal(position, *next);
    ++*next;
}

/* Fed tokens are told, sampled ones are not; a fork tells nothing. */
static void told(void **state)
{
    char path[1024];
    int32_t prompt[24], out[5];
    size_t next = 0;
    (void)state;
    moe_engine_options options = oracle_options(path, oracle_folder, "qwen3moe");
    moe_engine *engine = open_engine(&options);
    make_prompt(prompt, 24, engine->config.n_vocab, 3);
    moe_session *session = greedy_session(engine), *fork = NULL;
    assert_int_equal(moe_session_watch(session, count, &next, NULL), MOE_OK);
    feed(session, prompt, 20);
    decode(engine, session, out, 5);
    assert_int_equal(next, 20);
    assert_int_equal(moe_session_fork(&fork, session, NULL), MOE_OK);
    decode(engine, fork, out, 1);
    moe_session_close(&fork);
    assert_int_equal(moe_session_truncate(session, 20, NULL), MOE_OK);
    feed(session, prompt, 4);
    decode(engine, session, out, 2);
    assert_int_equal(next, 24);
    assert_int_equal(moe_session_watch(session, NULL, NULL, NULL), MOE_OK);
    assert_int_equal(moe_session_truncate(session, 0, NULL), MOE_OK);
    feed(session, prompt, 20);
    decode(engine, session, out, 1);
    assert_int_equal(next, 24);
    moe_session_close(&session);
    moe_engine_close(&engine);
}

static void errors(void **state)
{
    char path[1024];
    int32_t tokens[600] = {0};
    float embedding[MOST_WIDTH];
    const size_t none = 0, long_one = 600, one = 1;
    moe_error error = {""};
    (void)state;
    moe_engine_options options = oracle_options(path, oracle_folder, "qwen3moe");
    moe_engine *engine = open_engine(&options);
    assert_int_equal(moe_embed(engine, tokens, &none, 1, MOE_POOLING_MEAN, true, embedding, &error),
                     MOE_ERR_ARGUMENT);
    assert_non_null(strstr(error.message, "text 0 has no tokens"));
    assert_int_equal(
        moe_embed(engine, tokens, &long_one, 1, MOE_POOLING_MEAN, true, embedding, &error),
        MOE_ERR_CONTEXT_FULL);
    assert_int_equal(moe_embed(engine, tokens, &one, 1, (moe_pooling)7, true, embedding, &error),
                     MOE_ERR_ARGUMENT);
    assert_non_null(strstr(error.message, "MOE_POOLING_LAST"));
    tokens[0] = -1;
    assert_int_equal(moe_embed(engine, tokens, &one, 1, MOE_POOLING_LAST, true, embedding, &error),
                     MOE_ERR_ARGUMENT);
    assert_int_equal(moe_embed(engine, NULL, NULL, 0, MOE_POOLING_LAST, true, NULL, &error),
                     MOE_OK);
    moe_engine_close(&engine);
    options.vocabulary_only = true;
    engine = open_engine(&options);
    tokens[0] = 0;
    assert_int_equal(moe_embed(engine, tokens, &one, 1, MOE_POOLING_LAST, true, embedding, &error),
                     MOE_ERR_UNSUPPORTED);
    moe_engine_close(&engine);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s ORACLE-FOLDER\n", argv[0]);
        return 2;
    }
    oracle_folder = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_reference), cmocka_unit_test(same_everywhere),
        cmocka_unit_test(pooled),        cmocka_unit_test(told),
        cmocka_unit_test(errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
