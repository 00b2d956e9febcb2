/* SPDX-License-Identifier: MIT */
/* Sessions that wait are parked where memory is short: the logits have the bits of an engine with
 * memory for all, whatever is done to a parked session; a damaged file, a short one and a full disk
 * cost time or are told, and no text. Usage: test_parking ORACLE-FOLDER. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <signal.h>
#include <sys/resource.h>

#include "engine_fixture.h"
#include "offload/expert_store_state.h"
#include "runtime/engine/engine_state.h"

#define N_SESSIONS 6u
#define N_PROMPT   150u
#define N_TURN     9u
#define N_TURNS    3u
#define CONTEXT    320u

static const char *folder;
static char path[1024];
static uint32_t n_told;
static char told[600];

static void log_line(const char *line, void *user)
{
    (void)user;
    n_told++;
    snprintf(told, sizeof told, "%s", line);
}

typedef struct texts {
    int32_t tokens[N_SESSIONS][N_TURNS * N_TURN];
    float logits[N_SESSIONS][512]; /* the first ones, at the end */
} texts;

static texts expected, got;

/* park: a folder, or NULL. With one, memory is for about two of the sessions. */
static moe_engine *open_parking(const char *model, const char *park, moe_speculate speculate)
{
    moe_engine_options options = oracle_options(path, folder, model);
    options.context = CONTEXT;
    options.park_folder = park;
    options.speculate = speculate;
    options.log = log_line;
    moe_engine *engine = open_engine(&options);
    if (park != NULL) {
        moe_memory_border *b = &engine->border;
        moe_memory_border_seal(b, &engine->plan);
        engine->runner.experts->options.n_expert_used = UINT32_MAX; /* so that no slot is closed */
        const moe_memory_plan *p = &engine->plan;
        uint64_t more = (N_SESSIONS - 1) * p->session_state + p->kv_cache / 2;
        b->ram_at_open += more;
        b->ram_free += more;
    }
    return engine;
}

static void step_turn(moe_engine *engine, moe_session *session, int32_t *out)
{
    decode(engine, session, out, N_TURN);
}

static void begin(moe_engine *engine, moe_session **sessions)
{
    int32_t prompt[N_PROMPT];
    for (uint32_t i = 0; i < N_SESSIONS; i++) {
        sessions[i] = greedy_session(engine);
        make_prompt(prompt, N_PROMPT, engine->config.n_vocab, i + 1);
        feed(sessions[i], prompt, N_PROMPT - 7 * i);
    }
}

static void end(moe_engine *engine, moe_session **sessions, texts *t)
{
    size_t n = engine->config.n_vocab < 512 ? engine->config.n_vocab : 512;
    for (uint32_t i = 0; i < N_SESSIONS; i++) {
        memcpy(t->logits[i], moe_session_logits(sessions[i]), n * sizeof(float));
        moe_session_close(&sessions[i]);
    }
    assert_int_equal(engine->border.ram_granted, 0);
    assert_true(moe_memory_border_check(&engine->border));
}

static void write_all(moe_engine *engine, texts *t)
{
    moe_session *sessions[N_SESSIONS];
    begin(engine, sessions);
    for (uint32_t turn = 0; turn < N_TURNS; turn++) {
        for (uint32_t i = 0; i < N_SESSIONS; i++) {
            step_turn(engine, sessions[i], &t->tokens[i][turn * N_TURN]);
        }
    }
    end(engine, sessions, t);
}

static void assert_same(void)
{
    assert_memory_equal(got.tokens, expected.tokens, sizeof got.tokens);
    assert_memory_equal(got.logits, expected.logits, sizeof got.logits);
}

static void expect(const char *model)
{
    memset(&expected, 0, sizeof expected);
    memset(&got, 0, sizeof got);
    moe_engine *engine = open_parking(model, NULL, MOE_SPECULATE_OFF);
    write_all(engine, &expected);
    assert_int_equal(engine->n_parked, 0);
    moe_engine_close(&engine);
}

/* Every kind of layer, with and without drafts. */
static void same_text(void **state)
{
    expect(*state);
    static const moe_speculate speculate[] = {MOE_SPECULATE_OFF, MOE_SPECULATE_NGRAM};
    for (uint32_t i = 0; i < 2; i++) {
        moe_engine *engine = open_parking(*state, "/tmp", speculate[i]);
        n_told = 0;
        write_all(engine, &got);
        print_message("%s: parked %llu times\n", (const char *)*state,
                      (unsigned long long)engine->n_parked);
        assert_true(engine->n_parked >= N_SESSIONS && engine->n_replayed == 0);
        assert_int_equal(n_told, 0);
        moe_engine_close(&engine);
        if (speculate[i] != MOE_SPECULATE_OFF) { /* the last step may have written more tokens */
            memcpy(got.logits, expected.logits, sizeof got.logits);
        }
        assert_same();
    }
}

/* ---- Faults ---- */

typedef void (*fault)(FILE *file);

static void flip_a_bit(FILE *file)
{
    uint8_t byte;
    assert_int_equal(pread(fileno(file), &byte, 1, 1000), 1);
    byte ^= 4;
    assert_int_equal(pwrite(fileno(file), &byte, 1, 1000), 1);
}

static void cut_short(FILE *file)
{
    assert_int_equal(ftruncate(fileno(file), 500), 0);
}

static void damaged_files(void **state)
{
    static const fault faults[] = {flip_a_bit, cut_short};
    expect(*state);
    for (uint32_t f = 0; f < 2; f++) {
        moe_engine *engine = open_parking(*state, "/tmp", MOE_SPECULATE_OFF);
        moe_session *sessions[N_SESSIONS];
        uint32_t n_damaged = 0;
        n_told = 0;
        begin(engine, sessions);
        for (uint32_t turn = 0; turn < N_TURNS; turn++) {
            for (uint32_t i = 0; i < N_SESSIONS; i++) {
                if (turn > 0 && i % 2 == 0 && sessions[i]->parked != NULL) {
                    faults[f](sessions[i]->parked);
                    n_damaged++;
                }
                step_turn(engine, sessions[i], &got.tokens[i][turn * N_TURN]);
            }
        }
        assert_true(n_damaged > 0);
        assert_int_equal(engine->n_replayed, n_damaged);
        assert_int_equal(n_told, n_damaged);
        assert_non_null(strstr(told, "evaluated again"));
        end(engine, sessions, &got);
        moe_engine_close(&engine);
        assert_same();
    }
}

/* Nothing can be written: the step fails as it does without parking, every session is as it was,
 * and goes on when there is room. */
static void full_disk(void **state)
{
    expect(*state);
    moe_engine *engine = open_parking(*state, "/tmp", MOE_SPECULATE_OFF);
    moe_session *sessions[N_SESSIONS] = {NULL};
    struct rlimit before;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    struct rlimit none = {0, before.rlim_max};
    (void)signal(SIGXFSZ, SIG_IGN);
    begin(engine, sessions);
    for (uint32_t i = 0; i < N_SESSIONS; i++) {
        step_turn(engine, sessions[i], got.tokens[i]);
    }
    assert_non_null(sessions[0]->parked);
    n_told = 0;
    uint64_t n_parked = engine->n_parked;
    moe_error err = {""};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    assert_int_equal(moe_step(engine, &sessions[0], 1, &err), MOE_ERR_BUDGET);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_true(n_told > 0 && strstr(told, "is not parked") != NULL);
    assert_int_equal(engine->n_parked, n_parked);
    assert_non_null(sessions[0]->parked);
    for (uint32_t turn = 1; turn < N_TURNS; turn++) {
        for (uint32_t i = 0; i < N_SESSIONS; i++) {
            step_turn(engine, sessions[i], &got.tokens[i][turn * N_TURN]);
        }
    }
    end(engine, sessions, &got);
    moe_engine_close(&engine);
    assert_same();
}

static void no_folder(void **state)
{
    moe_engine_options options = oracle_options(path, folder, *state);
    options.park_folder = "/nowhere/at/all";
    moe_engine *engine = NULL;
    moe_error err = {""};
    assert_int_equal(moe_engine_open(&engine, &options, &err), MOE_ERR_IO);
    assert_non_null(strstr(err.message, "/nowhere/at/all"));
    assert_null(engine);
}

/* ---- What is done to a session that is parked ---- */

/* Forks, cuts, feeds and saves it; writes on with what comes of that. */
static void use_parked(moe_engine *engine, bool parks, texts *t)
{
    char file[] = "/tmp/moe-parking-XXXXXX";
    int fd = mkstemp(file);
    assert_true(fd >= 0);
    close(fd);
    moe_session *sessions[N_SESSIONS];
    moe_session *other = NULL;
    begin(engine, sessions);
    for (uint32_t i = 0; i < N_SESSIONS; i++) {
        step_turn(engine, sessions[i], t->tokens[i]);
    }
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(sessions[i]->parked != NULL, parks);
        int32_t *out = &t->tokens[i][N_TURN];
        if (i == 0) {
            assert_int_equal(moe_session_fork(&other, sessions[i], NULL), MOE_OK);
        } else if (i == 1) {
            assert_int_equal(moe_session_truncate(sessions[i], 100, NULL), MOE_OK);
            feed(sessions[i], t->tokens[0], 3);
        } else if (i == 2) {
            feed(sessions[i], t->tokens[0], 5);
        } else {
            assert_int_equal(moe_session_save(sessions[i], file, NULL), MOE_OK);
            moe_session_close(&sessions[i]);
            assert_int_equal(moe_session_load(&sessions[i], engine, file, NULL), MOE_OK);
        }
        step_turn(engine, sessions[i], out);
        if (other != NULL) {
            step_turn(engine, other, out + N_TURN);
            moe_session_close(&other);
        }
    }
    unlink(file);
    end(engine, sessions, t);
}

static void uses(void **state)
{
    memset(&expected, 0, sizeof expected);
    memset(&got, 0, sizeof got);
    moe_engine *engine = open_parking(*state, NULL, MOE_SPECULATE_OFF);
    use_parked(engine, false, &expected);
    moe_engine_close(&engine);
    engine = open_parking(*state, "/tmp", MOE_SPECULATE_OFF);
    use_parked(engine, true, &got);
    moe_engine_close(&engine);
    assert_same();
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: test_parking ORACLE-FOLDER\n");
        return 2;
    }
    folder = argv[1];
    const struct CMUnitTest tests[] = {
        {"same text: full", same_text, NULL, NULL, "qwen3moe"},
        {"same text: MLA", same_text, NULL, NULL, "deepseek2-v3"},
        {"same text: indexer", same_text, NULL, NULL, "deepseek32-plain"},
        {"same text: windows", same_text, NULL, NULL, "gpt-oss-page"},
        {"same text: recurrent", same_text, NULL, NULL, "qwen35moe"},
        {"damaged files: full", damaged_files, NULL, NULL, "qwen3moe"},
        {"damaged files: windows", damaged_files, NULL, NULL, "gpt-oss-page"},
        {"damaged files: recurrent", damaged_files, NULL, NULL, "qwen35moe"},
        {"full disk", full_disk, NULL, NULL, "qwen3moe"},
        {"no folder", no_folder, NULL, NULL, "qwen3moe"},
        {"uses: full", uses, NULL, NULL, "qwen3moe"},
        {"uses: windows", uses, NULL, NULL, "gpt-oss-page"},
        {"uses: recurrent", uses, NULL, NULL, "qwen35moe"},
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
