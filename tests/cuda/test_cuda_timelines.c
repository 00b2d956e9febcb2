/* SPDX-License-Identifier: MIT */
/* What becomes of a timeline on the emulated GPU: prompts in chunks, neighbours in a batch, forks,
 * cuts, saved sessions and rejected drafts have the bits of the CPU, which evaluates the text in
 * one chunk. For models whose layers keep a state, choose positions, or free pages behind windows.
 * Usage: test_cuda_timelines MODEL.gguf [windows | matrix]
 * windows: texts are long enough to free pages. matrix: attention by matrix units has the bits of
 * the GPU's own evaluation of the text, which are near the CPU's. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "../engine/engine_fixture.h"
#include "../engine/engine_options.h"
#include "fake_module.h"
#include "runtime/engine/engine_state.h"

#define MOST_TEXT  330u
#define N_TEXTS    2u
#define N_PROMPT   24u
#define N_GREEDY   24u
#define N_SESSIONS 3u
/* As far apart as logits of these models are with keys and values in F16 and in F32: activations
 * are rounded to 8 bits, and a rounding that falls otherwise is passed on. Some positions are
 * further apart, because another expert was chosen. */
#define NEAR 0.02f

static const char *model_path;
static fake_module fake;
static bool has_windows;
static bool by_matrix;
static uint32_t n_text = 80;
static uint32_t n_vocab;
static int32_t texts[N_TEXTS][MOST_TEXT];
static float *logits[N_TEXTS]; /* [n_text][n_vocab]: the CPU's */
static int32_t greedy[N_GREEDY];

static moe_engine_options options_of(const char *device, uint32_t chunk, double share)
{
    moe_engine_options options;
    moe_engine_options_init(&options);
    options.model_path = model_path;
    options.n_threads = 2;
    options.context = has_windows || by_matrix ? 768 : 128;
    options.device = device;
    options.prefill_chunk = chunk;
    options.expert_cache_share = share;
    options.exact_attention = !by_matrix;
    return options;
}

static moe_engine *open_gpu(uint32_t chunk, double share)
{
    fake_machine machine;
    fake.init(&machine);
    machine.nap_us = 20;
    /* With many multiprocessors, blocks share a long timeline. */
    machine.n_multiprocessors = by_matrix && chunk != n_text ? 132 : machine.n_multiprocessors;
    fake.set(&machine);
    moe_engine_options options = options_of("cuda", chunk, share);
    return open_engine(&options);
}

static moe_session *reading_session(moe_engine *engine)
{
    moe_session_options options;
    moe_session_options_init(&options);
    options.evaluate_only = true;
    moe_session *session = NULL;
    assert_int_equal(moe_session_create(&session, engine, &options, NULL), MOE_OK);
    return session;
}

static void step_all(moe_engine *engine, moe_session **sessions, size_t n)
{
    bool pending = true;
    while (pending) {
        moe_error error;
        if (moe_step(engine, sessions, n, &error) != MOE_OK) {
            fail_msg("%s", error.message);
        }
        pending = false;
        for (size_t i = 0; i < n; i++) {
            pending = pending || moe_session_n_pending(sessions[i]) > 0;
        }
    }
}

/* The session holds the first n tokens of a text. */
static void check_logits(const moe_session *session, uint32_t text, size_t n)
{
    assert_int_equal(moe_session_n_tokens(session), n);
    assert_non_null(moe_session_logits(session));
    if (memcmp(moe_session_logits(session), logits[text] + (n - 1) * n_vocab,
               n_vocab * sizeof(float)) != 0) {
        fail_msg("other logits after %zu tokens of text %u", n, text);
    }
}

static void go_on(moe_engine *engine, moe_session *session, uint32_t text, size_t n)
{
    size_t has = moe_session_n_tokens(session);
    feed(session, texts[text] + has, n - has);
    step_all(engine, &session, 1);
    check_logits(session, text, n);
}

static bool keep_row(size_t position, const float *row, void *user)
{
    memcpy((float *)user + position * n_vocab, row, n_vocab * sizeof *row);
    return true;
}

static void make_looping_prompt(int32_t *tokens)
{
    make_prompt(tokens, N_PROMPT, n_vocab, 9);
    for (uint32_t i = 8; i < N_PROMPT; i++) {
        tokens[i] = tokens[i % 8];
    }
}

static void write_greedy(moe_engine *engine, int32_t *out)
{
    int32_t prompt[N_PROMPT];
    make_looping_prompt(prompt);
    moe_session *session = greedy_session(engine);
    feed(session, prompt, N_PROMPT);
    decode(engine, session, out, N_GREEDY);
    moe_session_close(&session);
}

/* The greatest difference between the first text's logits and those of exact attention on this
 * device. *n_apart: positions with a difference above this part of the greatest logit. */
static float greatest_difference(const char *device, uint32_t *n_apart)
{
    moe_engine_options options = options_of(device, n_text, 1.0);
    options.exact_attention = true;
    moe_engine *engine = open_engine(&options);
    moe_session *session = reading_session(engine);
    float *exact = calloc((size_t)n_text * n_vocab, sizeof(float)), greatest = 0.0f, most = 0.0f;
    assert_non_null(exact);
    assert_int_equal(moe_session_score(session, texts[0], n_text, keep_row, exact, NULL), MOE_OK);
    for (size_t i = 0; i < (size_t)n_text * n_vocab; i++) {
        greatest = fmaxf(greatest, fabsf(exact[i]));
    }
    *n_apart = 0;
    for (uint32_t p = 0; p < n_text; p++) {
        float of_position = 0.0f;
        for (size_t i = (size_t)p * n_vocab; i < (size_t)(p + 1) * n_vocab; i++) {
            of_position = fmaxf(of_position, fabsf(exact[i] - logits[0][i]));
        }
        *n_apart += of_position > NEAR * greatest;
        most = fmaxf(most, of_position);
    }
    free(exact);
    moe_session_close(&session);
    moe_engine_close(&engine);
    return most;
}

static int make_reference(void **state)
{
    (void)state;
    find_fake_module(&fake);
    moe_engine_options options = options_of(by_matrix ? "cuda" : "cpu", n_text, 1.0);
    moe_engine *engine = open_engine(&options);
    moe_engine_info info = {.struct_size = sizeof info};
    moe_engine_get_info(engine, &info);
    n_vocab = info.n_vocab;
    for (uint32_t t = 0; t < N_TEXTS; t++) {
        make_prompt(texts[t], n_text, n_vocab, 3 + t);
        memcpy(texts[t], texts[0], n_text / 2 * sizeof **texts); /* they part in the middle */
        logits[t] = calloc((size_t)n_text * n_vocab, sizeof(float));
        moe_session *session = reading_session(engine);
        assert_int_equal(moe_session_score(session, texts[t], n_text, keep_row, logits[t], NULL),
                         MOE_OK);
        moe_session_close(&session);
    }
    write_greedy(engine, greedy);
    moe_engine_close(&engine);
    return 0;
}

static int free_reference(void **state)
{
    (void)state;
    for (uint32_t t = 0; t < N_TEXTS; t++) {
        free(logits[t]);
    }
    return 0;
}

/* The GPU's own attention is another form than the exact one, which is the CPU's, and near it. */
static void near_the_cpu(void **state)
{
    (void)state;
    if (!by_matrix) {
        skip();
    }
    uint32_t n_apart[2];
    const float apart = greatest_difference("cpu", &n_apart[0]);
    assert_true(apart > 0.0f);
    assert_true(greatest_difference("cuda", &n_apart[1]) == apart);
    print_message("%u of %u positions are apart\n", n_apart[0], n_text);
    assert_true(n_apart[0] == n_apart[1] && n_apart[0] <= n_text / 10);
}

/* The file of a session is marked with the form of attention: another form takes the tokens alone.
 */
static void saved_elsewhere(void **state)
{
    (void)state;
    if (!by_matrix) {
        skip();
    }
    char file[] = "/tmp/moe-timelines-XXXXXX";
    int fd = mkstemp(file);
    assert_true(fd >= 0);
    close(fd);
    for (int from_exact = 0; from_exact < 2; from_exact++) {
        moe_engine *engines[2];
        for (int exact = 0; exact < 2; exact++) {
            moe_engine_options options = options_of("cuda", 16, 1.0);
            options.exact_attention = exact != 0;
            engines[exact] = open_engine(&options);
        }
        moe_session *session = reading_session(engines[from_exact]), *loaded;
        moe_error error = {""};
        int32_t *tokens;
        size_t n;
        feed(session, texts[0], 20);
        step_all(engines[from_exact], &session, 1);
        assert_int_equal(moe_session_save(session, file, NULL), MOE_OK);
        assert_int_equal(moe_session_load(&loaded, engines[from_exact], file, NULL), MOE_OK);
        assert_int_equal(moe_session_n_pending(loaded), 0);
        moe_session_close(&loaded);
        assert_int_equal(moe_session_file_tokens(file, engines[!from_exact], &tokens, &n, &error),
                         MOE_ERR_MISMATCH);
        assert_non_null(strstr(error.message, "options.exact_attention"));
        assert_int_equal(moe_session_load(&loaded, engines[!from_exact], file, NULL), MOE_OK);
        assert_int_equal(moe_session_n_pending(loaded), 20);
        moe_session_close(&loaded);
        moe_session_close(&session);
        moe_engine_close(&engines[0]);
        moe_engine_close(&engines[1]);
    }
    unlink(file);
    assert_nothing_left(&fake);
}

static bool compare_row(size_t position, const float *row, void *user)
{
    if (memcmp(row, logits[0] + position * n_vocab, n_vocab * sizeof *row) != 0) {
        fail_msg("chunks of %u: other logits at position %zu", *(const uint32_t *)user, position);
    }
    return true;
}

/* Pages behind windows are gone, and the plan has what is left, unless all of a text is one chunk.
 */
static void check_pages(const moe_session *session, uint32_t chunk)
{
    const moe_kv_pool *pool = &session->engine->kv;
    const moe_memory_plan *plan = &session->engine->plan;
    uint64_t kept = 0;
    assert_true(moe_kv_table_is_sane(pool, &session->kv));
    for (uint32_t g = 0; g < pool->n_groups && has_windows && chunk < 64; g++) {
        assert_int_equal(session->kv.first_page[g] > 0, pool->groups[g].frees);
        kept += pool->groups[g].frees;
    }
    assert_true((kept > 0) == (has_windows && chunk < 64));
    assert_true(chunk >= 64 || (plan->kv_windowed > 0) == has_windows);
}

static void chunks(void **state)
{
    (void)state;
    const uint32_t sizes[] = {1, 7, n_text};
    for (size_t i = has_windows; i < sizeof sizes / sizeof sizes[0]; i++) {
        uint32_t size = sizes[i];
        moe_engine *engine = open_gpu(size, i == 1 ? 0.5 : 1.0);
        moe_session *session = reading_session(engine);
        assert_int_equal(moe_session_score(session, texts[0], n_text, compare_row, &size, NULL),
                         MOE_OK);
        check_pages(session, size);
        assert_true(moe_kv_pool_bytes(&engine->kv) <= engine->plan.kv_cache);
        moe_session_close(&session);
        moe_engine_close(&engine);
        assert_nothing_left(&fake);
    }
}

static void batch_neighbours(void **state)
{
    (void)state;
    moe_engine *engine = open_gpu(16, 0.6);
    moe_session *sessions[N_SESSIONS];
    size_t n[N_SESSIONS] = {0};
    for (uint32_t i = 0; i < N_SESSIONS; i++) {
        sessions[i] = reading_session(engine);
    }
    for (uint32_t round = 0; round < 6; round++) {
        for (uint32_t i = 0; i < N_SESSIONS; i++) {
            uint32_t more = (round * 5 + i * 11) % 13 + (i == 0);
            feed(sessions[i], texts[i % 2] + n[i], more);
            n[i] += more;
        }
        step_all(engine, sessions, N_SESSIONS);
        for (uint32_t i = 0; i < N_SESSIONS; i++) {
            if (n[i] > 0) {
                check_logits(sessions[i], i % 2, n[i]);
            }
        }
    }
    for (uint32_t i = 0; i < N_SESSIONS; i++) {
        moe_session_close(&sessions[i]);
    }
    moe_engine_close(&engine);
    assert_nothing_left(&fake);
}

static void save_and_load(moe_engine *engine, moe_session **session)
{
    char file[] = "/tmp/moe-timelines-XXXXXX";
    int fd = mkstemp(file);
    assert_true(fd >= 0);
    close(fd);
    moe_error error;
    assert_int_equal(moe_session_save(*session, file, NULL), MOE_OK);
    moe_session_close(session);
    if (moe_session_load(session, engine, file, &error) != MOE_OK) {
        fail_msg("%s", error.message);
    }
    unlink(file);
}

static void forked_cut_and_saved(void **state)
{
    (void)state;
    moe_engine *engine = open_gpu(16, 0.6);
    moe_session *session = reading_session(engine);
    go_on(engine, session, 0, n_text / 2);
    moe_session *fork;
    assert_int_equal(moe_session_fork(&fork, session, NULL), MOE_OK);
    go_on(engine, fork, 1, n_text / 2 + 1);
    go_on(engine, session, 0, n_text / 2 + 9);
    go_on(engine, fork, 1, n_text / 2 + 20);
    save_and_load(engine, &fork);
    go_on(engine, fork, 1, n_text);
    assert_int_equal(moe_session_truncate(session, n_text / 2 - 5, NULL), MOE_OK);
    go_on(engine, session, 1, n_text / 2 + 3); /* of either text until here */
    check_pages(fork, 16);
    assert_int_equal(moe_session_truncate(session, 3, NULL), MOE_OK);
    go_on(engine, session, 0, n_text);
    moe_session_close(&fork);
    moe_session_close(&session);
    moe_engine_close(&engine);
    assert_nothing_left(&fake);
}

static void drafts(void **state)
{
    (void)state;
    static const moe_speculate kinds[] = {MOE_SPECULATE_NGRAM, MOE_SPECULATE_SELF};
    uint64_t n_drafted = 0;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        fake_machine machine;
        fake.init(&machine);
        fake.set(&machine);
        moe_engine_options options = options_of("cuda", 16, 0.6);
        options.speculate = kinds[i];
        options.draft_max = 4;
        lab_of(&options)->length_control = MOE_LENGTH_STATIC;
        moe_engine *engine = open_engine(&options);
        int32_t tokens[N_GREEDY];
        write_greedy(engine, tokens);
        assert_memory_equal(tokens, greedy, sizeof tokens);
        moe_engine_stats stats = {.struct_size = sizeof stats};
        moe_engine_get_stats(engine, &stats);
        n_drafted += stats.speculation.drafted;
        moe_engine_close(&engine);
        assert_nothing_left(&fake);
    }
    assert_true(n_drafted > 0);
}

int main(int argc, char **argv)
{
    if (argc != 2 && argc != 3) {
        fprintf(stderr, "usage: test_cuda_timelines MODEL.gguf [windows | matrix]\n");
        return 2;
    }
    model_path = argv[1];
    has_windows = argc == 3 && strcmp(argv[2], "windows") == 0;
    by_matrix = argc == 3 && strcmp(argv[2], "matrix") == 0;
    n_text = argc == 3 ? MOST_TEXT : n_text;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks),
        cmocka_unit_test(batch_neighbours),
        cmocka_unit_test(forked_cut_and_saved),
        cmocka_unit_test(drafts),
        cmocka_unit_test(near_the_cpu),
        cmocka_unit_test(saved_elsewhere),
    };
    return cmocka_run_group_tests(tests, make_reference, free_reference);
}
