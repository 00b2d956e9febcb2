/* SPDX-License-Identifier: MIT */
/* Models with a table on disk, of which tokens read rows: the logits are the same bits however few
 * rows stay in memory; the statistics count every row; a row that cannot be read fails the step
 * with its number, and the step can be run again.
 * Usage: test_row_tables ORACLE-FOLDER */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <moe/lab.h>
#include <moe/moe.h>

#include "offload/io/io_fault.h"
#include "runtime/engine/engine_state.h"
#include "runtime/pass/op_ngrams.h"
#include "tests/engine/engine_fixture.h"

enum { N_PROMPT = 90, N_WRITTEN = 30 };

static const char *oracle_folder;

static moe_engine *open_model(const char *name, uint64_t row_slots, uint32_t chunk)
{
    char path[1024];
    moe_lab_options lab;
    moe_lab_options_init(&lab);
    moe_engine_options options = oracle_options(path, oracle_folder, name);
    lab.row_slots = row_slots;
    options.lab = &lab;
    options.prefill_chunk = chunk;
    return open_engine(&options);
}

static void write_text(moe_engine *engine, int32_t written[N_WRITTEN])
{
    int32_t prompt[N_PROMPT];
    moe_session *session = greedy_session(engine);
    make_prompt(prompt, N_PROMPT, engine->config.n_vocab - 1, 3);
    feed(session, prompt, N_PROMPT);
    decode(engine, session, written, N_WRITTEN);
    moe_session_close(&session);
}

static moe_engine_stats stats_of(const moe_engine *engine)
{
    moe_engine_stats stats = {.struct_size = sizeof stats};
    assert_int_equal(moe_engine_get_stats(engine, &stats), MOE_OK);
    return stats;
}

static void test_few_slots(void **state)
{
    static const char *const models[] = {"qwen4exp", "qwen4exp-streams"};
    static const uint64_t slots[] = {0, 1, 9, 50};
    static const uint32_t chunks[] = {64, 1, 7};
    (void)state;
    for (size_t m = 0; m < 2; m++) {
        int32_t expected[N_WRITTEN], written[N_WRITTEN];
        for (size_t i = 0; i < sizeof slots / sizeof slots[0]; i++) {
            for (size_t c = 0; c < sizeof chunks / sizeof chunks[0]; c++) {
                const bool first = i == 0 && c == 0;
                moe_engine *engine = open_model(models[m], slots[i], chunks[c]);
                write_text(engine, first ? expected : written);
                const moe_engine_stats stats = stats_of(engine);
                const uint64_t n_rows = stats.prompt_tokens + stats.decode_tokens;
                assert_int_equal(stats.rows_taken, n_rows * engine->config.ngrams.n_heads);
                assert_true(stats.rows_waited <= stats.rows_taken && stats.rows_read > 0);
                assert_int_equal(stats.rows_failed, 0);
                assert_true(slots[i] != 1 || stats.rows_waited > stats.rows_taken / 2);
                if (!first) {
                    assert_memory_equal(written, expected, sizeof written);
                }
                moe_engine_close(&engine);
            }
        }
    }
}

/* A second text of the same tokens reads no row again, and waits for none. */
static void test_kept_rows(void **state)
{
    int32_t first[N_WRITTEN], second[N_WRITTEN];
    (void)state;
    moe_engine *engine = open_model("qwen4exp", 0, 64);
    write_text(engine, first);
    const moe_engine_stats before = stats_of(engine);
    write_text(engine, second);
    const moe_engine_stats after = stats_of(engine);
    assert_memory_equal(second, first, sizeof first);
    assert_int_equal(after.rows_read, before.rows_read);
    assert_int_equal(after.rows_waited, before.rows_waited);
    assert_int_equal(after.rows_taken, 2 * before.rows_taken);
    moe_engine_close(&engine);
}

/* Evaluating the beginning of a prompt also reads the rows of what comes next. */
static void test_rows_ahead(void **state)
{
    int32_t prompt[N_PROMPT];
    uint64_t n_read[2] = {0};
    (void)state;
    make_prompt(prompt, N_PROMPT, 95, 3);
    for (int whole = 1; whole >= 0; whole--) {
        moe_engine *engine = open_model("qwen4exp", 0, 45);
        moe_session *session = greedy_session(engine);
        feed(session, prompt, N_PROMPT);
        for (int steps = 0; steps <= whole; steps++) {
            assert_int_equal(moe_step(engine, &session, 1, NULL), MOE_OK);
        }
        for (int i = 0; i < 5000 && !whole && stats_of(engine).rows_read < n_read[1]; i++) {
            usleep(1000);
        }
        n_read[whole] = stats_of(engine).rows_read;
        moe_session_close(&session);
        moe_engine_close(&engine);
    }
    assert_int_equal(n_read[0], n_read[1]);
}

/* ---- A disk that fails ---- */

typedef struct disk {
    atomic_bool broken; /* the table's thread looks at it */
} disk;

static moe_fault choose_fault(void *user, const moe_io_read *read, uint64_t n)
{
    disk *d = user;
    (void)read;
    (void)n;
    return d->broken ? (moe_fault){MOE_FAULT_ERROR, EIO} : (moe_fault){0};
}

static void test_failed_rows(void **state)
{
    int32_t expected[N_WRITTEN], written[N_WRITTEN], prompt[N_PROMPT];
    moe_error err = {""};
    disk d = {.broken = false};
    moe_io_fault fault = {.inner = &moe_io_threads_ops, .choose = choose_fault, .user = &d};
    (void)state;
    moe_engine *engine = open_model("qwen4exp", 0, 64);
    write_text(engine, expected);
    moe_row_table_close(&engine->runner.ngrams);
    const moe_row_table_options options = {.gguf = engine->gguf,
                                           .tensor = &engine->map.ngrams,
                                           .name = MOE_NGRAM_TENSOR,
                                           .n_slots = 5000,
                                           .io_engine = &moe_io_fault_ops,
                                           .io_context = &fault};
    assert_int_equal(moe_row_table_open(&engine->runner.ngrams, &options, NULL), MOE_OK);
    moe_session *session = greedy_session(engine);
    make_prompt(prompt, N_PROMPT, engine->config.n_vocab - 1, 3);
    feed(session, prompt, N_PROMPT);
    d.broken = true;
    assert_int_equal(moe_step(engine, &session, 1, &err), MOE_ERR_IO);
    if (strstr(err.message, "of tensor '" MOE_NGRAM_TENSOR "': ") == NULL) {
        fail_msg("%s", err.message);
    }
    assert_true(stats_of(engine).rows_failed > 0);
    d.broken = false;
    decode(engine, session, written, N_WRITTEN);
    assert_memory_equal(written, expected, sizeof written);
    moe_session_close(&session);
    moe_engine_close(&engine);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_few_slots),
        cmocka_unit_test(test_kept_rows),
        cmocka_unit_test(test_rows_ahead),
        cmocka_unit_test(test_failed_rows),
    };
    if (argc != 2) {
        return 2;
    }
    oracle_folder = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
