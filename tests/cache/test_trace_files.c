/* SPDX-License-Identifier: MIT */
/* Trace files: which are read, which are refused with which message, and that writing loses
 * nothing.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <moe/trace.h>

#include "cache/trace_rows.h"
#include "cache/trace_writer.h"

typedef struct fixture {
    char folder[64];
    char path[96];
} fixture;

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    strcpy(f->folder, "test-trace-XXXXXX");
    if (mkdtemp(f->folder) == NULL) {
        return -1;
    }
    snprintf(f->path, sizeof f->path, "%s/trace", f->folder);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    unlink(f->path);
    rmdir(f->folder);
    free(f);
    return 0;
}

static void write_file(const fixture *f, const void *bytes, size_t size)
{
    FILE *file = fopen(f->path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static int open_as(moe_trace **trace, const fixture *f, moe_trace_format format, uint32_t n_layer,
                   uint32_t n_expert, moe_error *err)
{
    moe_trace_open_options options;
    moe_trace_open_options_init(&options);
    options.path = f->path;
    options.format = format;
    options.n_layer = n_layer;
    options.n_expert = n_expert;
    return moe_trace_open(trace, &options, err);
}

static moe_trace *read_text(const fixture *f, const char *text)
{
    moe_trace *trace = NULL;
    moe_error err = {""};
    write_file(f, text, strlen(text));
    if (open_as(&trace, f, MOE_TRACE_JSONL, 0, 0, &err) != MOE_OK) {
        fail_msg("%s", err.message);
    }
    return trace;
}

static void test_plain_rows(void **state)
{
    moe_trace *trace = read_text(*state, "{\"tok\": 5, \"layers\": [[3, 1], [], [0, 2, 7]]}\n"
                                         "\n"
                                         "{\"layers\": [[4, 9], [], [1]], \"more\": {\"x\": 1}}\r\n"
                                         "  {\"layers\":[[4,1],[],[0]]}");
    moe_trace_info info = {.struct_size = sizeof info};
    moe_trace_get_info(trace, &info);
    assert_int_equal(info.n_layer, 3);
    assert_int_equal(info.n_expert, 10);
    assert_int_equal(info.n_expert_used, 3);
    assert_int_equal(info.n_rows, 3);
    assert_int_equal(info.n_passes, 3);
    assert_int_equal(info.n_sequences, 1);
    assert_int_equal(info.n_choices, 11);
    assert_int_equal(info.n_accesses, 11);
    assert_false(info.has_gates);
    moe_trace_list list = moe_trace_list_of(trace, 0, 0);
    assert_int_equal(list.n, 2);
    assert_int_equal(list.ids[0], 1); /* sorted */
    assert_int_equal(list.ids[1], 3);
    assert_int_equal(moe_trace_list_of(trace, 1, 1).n, 0);
    assert_int_equal(trace->token[0], 5);
    moe_trace_close(&trace);
    assert_null(trace);
}

/* What a draft forecast stays through writing and reading. */
static void test_forecasts(void **state)
{
    const fixture *f = *state;
    moe_trace *trace = read_text(
        f, "{\"pass\": 0, \"layers\": [[3], [0]], \"ahead\": [[0, 1, 0, 0.5], [2, 0, 9, 1]]}\n"
           "{\"pass\": 0, \"layers\": [[1], [0]]}\n"
           "{\"pass\": 1, \"layers\": [[3], [2]], \"ahead\": []}\n"
           "{\"pass\": 2, \"layers\": [[3], [1]], \"ahead\": [[31, 0, 4, 0.25]]}\n");
    for (int i = 0; i < 2; i++) {
        moe_trace_info info = {.struct_size = sizeof info};
        moe_trace_get_info(trace, &info);
        assert_true(info.has_forecasts);
        assert_int_equal(info.n_expert, 10);
        assert_int_equal(trace->n_forecasts, 3);
        assert_int_equal(trace->forecast_pass[1], 0);
        assert_int_equal(trace->forecast_pass[2], 2);
        assert_int_equal(trace->forecasts[1].passes_ahead, 2);
        assert_int_equal(trace->forecasts[1].expert, 9);
        assert_int_equal(trace->forecasts[0].layer, 1);
        assert_true(trace->forecasts[2].chance == 0.25f);
        moe_trace *again = NULL;
        assert_int_equal(moe_trace_save(trace, f->path, MOE_TRACE_JSONL, 0, NULL), MOE_OK);
        moe_trace_close(&trace);
        assert_int_equal(open_as(&again, f, MOE_TRACE_JSONL, 0, 0, NULL), MOE_OK);
        trace = again;
    }
    moe_trace_close(&trace);
}

static void test_passes_sequences_gates(void **state)
{
    moe_trace *trace = read_text(
        *state, "{\"moe_trace\": 1, \"n_layer\": 1, \"n_expert\": 64}\n"
                "{\"pass\": 10, \"seq\": 1, \"layers\": [[2, 1]], \"gates\": [[0.25, 0.5]]}\n"
                "{\"pass\": 10, \"seq\": 8, \"layers\": [[2, 3]], \"gates\": [[0.5, 1]]}\n"
                "{\"pass\": 12, \"seq\": 1, \"layers\": [[5, 3]], \"gates\": [[0, 1e-3]]}\n");
    moe_trace_info info = {.struct_size = sizeof info};
    moe_trace_get_info(trace, &info);
    assert_int_equal(info.n_expert, 64);
    assert_int_equal(info.n_passes, 2);
    assert_int_equal(info.n_sequences, 2);
    assert_int_equal(info.n_accesses, 5); /* 2 is chosen twice in one pass */
    assert_true(info.has_gates);
    moe_trace_list list = moe_trace_list_of(trace, 0, 0);
    assert_int_equal(list.ids[0], 1);
    assert_true(list.gates[0] == 0.5f); /* follows its expert */
    assert_true(list.gates[1] == 0.25f);
    moe_trace_close(&trace);
}

static void test_malformed(void **state)
{
    const struct {
        const char *text;
        const char *message; /* part of it */
    } cases[] = {
        {"", "no row"},
        {"\n\n", "no row"},
        {"{\"moe_trace\": 1}\n", "no row"},
        {"{\"moe_trace\": 2}\n", "line 1: version 2"},
        {"{\"moe_trace\": \"x\"}\n", "line 1: \"moe_trace\" is not a whole number"},
        {"{\"moe_trace\": 1, \"n_layer\": 5000}\n", "\"n_layer\" is not a whole number from 0 to"},
        {"{\"moe_trace\": 1, \"n_layer\": 2}\n{\"layers\": [[1]]}\n", "line 2: 1 layers instead"},
        {"{\"moe_trace\": 1, \"n_expert\": 4}\n{\"layers\": [[4]]}\n", "line 2: layer 0, expert 0"},
        {"hello\n", "line 1: not one JSON"},
        {"[1, 2]\n", "line 1: not a JSON object"},
        {"null\n", "line 1: not one JSON"},
        {"{\"layers\": [[1]]} x\n", "line 1: not one JSON"},
        {"{\"layers\": [[1]]\n", "line 1: not one JSON"},
        {"{\"layers\": [[1]]}\n{\"layers\": [[1]", "line 2: not one JSON"},
        {"{\"layers\": [[[[[[1]]]]]]}\n", "line 1: not one JSON"},
        {"{\"tok\": 1}\n", "line 1: no \"layers\""},
        {"{\"layers\": 3}\n", "must be lists"},
        {"{\"layers\": []}\n", "0 layers"},
        {"{\"layers\": [3]}\n", "layer 0: not a list"},
        {"{\"layers\": [null]}\n", "layer 0: not a list"},
        {"{\"layers\": [[]]}\n", "no expert at all"},
        {"{\"layers\": [[1, 1]]}\n", "line 1: layer 0: an expert stands there twice"},
        {"{\"layers\": [[1], [0, -1]]}\n", "layer 1, expert 1: not a whole number"},
        {"{\"layers\": [[4096]]}\n", "not a whole number from 0 to 4095"},
        {"{\"layers\": [[1.5]]}\n", "layer 0, expert 0"},
        {"{\"layers\": [[\"1\"]]}\n", "layer 0, expert 0"},
        {"{\"layers\": [[9223372036854775808]]}\n", "layer 0, expert 0"},
        {"{\"layers\": [[99999999999999999999]]}\n",
         "line 1: "}, /* json-c 0.18 refuses it itself */
        {"{\"layers\": [[1], [2]]}\n{\"layers\": [[1]]}\n", "line 2: 1 layers, but rows before"},
        {"{\"layers\": [[1]]}\n{\"pass\": 1, \"layers\": [[1]]}\n", "line 2: \"pass\" and"},
        {"{\"pass\": 3, \"layers\": [[1]]}\n{\"pass\": 2, \"layers\": [[1]]}\n", "pass 2 after"},
        {"{\"pass\": -1, \"layers\": [[1]]}\n", "\"pass\" is not a whole number"},
        {"{\"seq\": 4294967296, \"layers\": [[1]]}\n", "\"seq\" is not a whole number"},
        {"{\"tok\": true, \"layers\": [[1]]}\n", "\"tok\" is not a whole number"},
        {"{\"layers\": [[1]], \"gates\": [[1]]}\n{\"layers\": [[1]]}\n", "line 2: \"pass\" and"},
        {"{\"layers\": [[1]], \"gates\": [[1, 2]]}\n", "not a list of 1 numbers"},
        {"{\"layers\": [[1]], \"gates\": [[-0.5]]}\n", "number 0 is not in"},
        {"{\"layers\": [[1]], \"gates\": [[\"a\"]]}\n", "number 0 is not in"},
        {"{\"layers\": [[1]], \"gates\": []}\n", "\"gates\" of 0 layers"},
        {"{\"layers\": [[1]], \"gates\": 1}\n", "must be lists"},
        {"{\"layers\": [[1]], \"ahead\": 1}\n", "\"ahead\" is not a list"},
        {"{\"layers\": [[1]], \"ahead\": [[0, 0, 1]]}\n", "\"ahead\", entry 0: not [passes"},
        {"{\"layers\": [[1]], \"ahead\": [[0, 0, 1, 1], [32, 0, 1, 1]]}\n", "entry 1: not"},
        {"{\"layers\": [[1]], \"ahead\": [[0, 0, 1, 0]]}\n", "entry 0: not"},
        {"{\"layers\": [[1]], \"ahead\": [[0, 0, 1, 1.5]]}\n", "entry 0: not"},
        {"{\"layers\": [[1]], \"ahead\": [[0, 0, \"x\", 1]]}\n", "entry 0: not"},
        {"{\"layers\": [[1]], \"ahead\": [[0, 1, 1, 1]]}\n", "no such layer or expert"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        moe_trace *trace = NULL;
        moe_error err = {""};
        write_file(*state, cases[i].text, strlen(cases[i].text));
        int status = open_as(&trace, *state, MOE_TRACE_AUTO, 0, 0, &err);
        assert_null(trace);
        if (status != MOE_ERR_FORMAT || strstr(err.message, cases[i].message) == NULL) {
            fail_msg("case %zu, %s: status %d, '%s'", i, cases[i].text, status, err.message);
        }
    }
}

static void test_lines_are_bounded(void **state)
{
    moe_trace *trace = NULL;
    moe_error err = {""};
    size_t size = (4u << 20) + 100;
    char *text = malloc(size);
    memset(text, ' ', size);
    text[size - 1] = '\n';
    write_file(*state, text, size);
    assert_int_equal(open_as(&trace, *state, MOE_TRACE_JSONL, 0, 0, &err), MOE_ERR_FORMAT);
    assert_non_null(strstr(err.message, "line 1: longer than"));
    free(text);
    write_file(*state, "{\"layers\": \0[[1]]}\n{\"layers\": [[1]]}\n", 38);
    assert_int_equal(open_as(&trace, *state, MOE_TRACE_JSONL, 0, 0, &err), MOE_ERR_FORMAT);
    assert_non_null(strstr(err.message, "zero byte"));
}

static void test_refused_options(void **state)
{
    const fixture *f = *state;
    moe_trace *trace = NULL;
    moe_error err = {""};
    write_file(f, "{\"layers\": [[1]]}\n", 18);
    assert_int_equal(open_as(&trace, f, MOE_TRACE_JSONL, 2, 0, &err), MOE_ERR_FORMAT);
    assert_int_equal(open_as(&trace, f, MOE_TRACE_JSONL, 0, 1, &err), MOE_ERR_FORMAT);
    assert_int_equal(open_as(&trace, f, MOE_TRACE_JSONL, 0, 5000, &err), MOE_ERR_ARGUMENT);
    assert_int_equal(open_as(&trace, f, (moe_trace_format)9, 0, 0, &err), MOE_ERR_ARGUMENT);
    assert_int_equal(open_as(&trace, f, MOE_TRACE_ORACLE_GENERAL, 0, 4, &err), MOE_ERR_ARGUMENT);
    moe_trace_open_options none = {.struct_size = 0};
    assert_int_equal(moe_trace_open(&trace, &none, &err), MOE_ERR_ARGUMENT);
    unlink(f->path);
    assert_int_equal(open_as(&trace, f, MOE_TRACE_JSONL, 0, 0, &err), MOE_ERR_IO);
    assert_non_null(strstr(err.message, f->path));
    assert_null(trace);
}

static void assert_same(const moe_trace *a, const moe_trace *b)
{
    assert_int_equal(a->n_layer, b->n_layer);
    assert_int_equal(a->n_expert, b->n_expert);
    assert_int_equal(a->n_rows, b->n_rows);
    assert_int_equal(a->n_passes, b->n_passes);
    assert_int_equal(a->n_sequences, b->n_sequences);
    assert_int_equal(a->n_expert_used, b->n_expert_used);
    assert_memory_equal(a->pass, b->pass, a->n_rows * sizeof *a->pass);
    assert_memory_equal(a->token, b->token, a->n_rows * sizeof *a->token);
    assert_memory_equal(a->sequence, b->sequence, a->n_rows * sizeof *a->sequence);
    assert_memory_equal(a->start, b->start, (a->n_rows * a->n_layer + 1) * sizeof *a->start);
    assert_memory_equal(a->ids, b->ids, a->n_ids * sizeof *a->ids);
    assert_int_equal(a->has_gates, b->has_gates);
    if (a->has_gates) {
        assert_memory_equal(a->gates, b->gates, a->n_ids * sizeof *a->gates);
    }
}

static moe_trace *generated(uint64_t seed)
{
    moe_trace_generator generator;
    moe_trace *trace = NULL;
    assert_int_equal(moe_trace_generator_init(&generator, "olmoe", NULL), MOE_OK);
    generator.n_layer = 5;
    generator.n_sequences = 3;
    generator.n_prompts = 2;
    generator.prompt_rows = 7;
    generator.decode_passes = 11;
    generator.seed = seed;
    assert_int_equal(moe_trace_generate(&trace, &generator, NULL), MOE_OK);
    return trace;
}

static void test_jsonl_keeps_all(void **state)
{
    const fixture *f = *state;
    moe_trace *trace = generated(3);
    moe_trace *again = NULL;
    assert_int_equal(moe_trace_save(trace, f->path, MOE_TRACE_AUTO, 0, NULL), MOE_OK);
    assert_int_equal(open_as(&again, f, MOE_TRACE_AUTO, 0, 0, NULL), MOE_OK);
    assert_same(trace, again);
    assert_int_equal(trace->n_rows, 2 * (3 * 7 + 3 * 11));
    assert_int_equal(trace->n_passes, 2 * (3 + 11));
    moe_trace_close(&again);
    moe_trace_close(&trace);
}

/* oracleGeneral merges the rows of a pass: what a cache sees stays. */
static void test_oracle_keeps_accesses(void **state)
{
    const fixture *f = *state;
    moe_trace *trace = generated(4);
    moe_trace *again = NULL;
    moe_trace *third = NULL;
    moe_trace_info before = {.struct_size = sizeof before};
    moe_trace_info after = {.struct_size = sizeof after};
    assert_int_equal(moe_trace_save(trace, f->path, MOE_TRACE_ORACLE_GENERAL, 77, NULL), MOE_OK);
    assert_int_equal(open_as(&again, f, MOE_TRACE_ORACLE_GENERAL, 5, 64, NULL), MOE_OK);
    moe_trace_get_info(trace, &before);
    moe_trace_get_info(again, &after);
    assert_int_equal(after.n_accesses, before.n_accesses);
    assert_int_equal(after.n_passes, before.n_passes);
    assert_int_equal(after.n_rows, before.n_passes);
    FILE *file = fopen(f->path, "rb");
    uint8_t record[24];
    assert_int_equal(fread(record, 24, 1, file), 1);
    assert_int_equal(record[0], 0);   /* time: pass 0 */
    assert_int_equal(record[12], 77); /* size */
    fseek(file, 0, SEEK_END);
    assert_int_equal(ftell(file), 24 * (long)before.n_accesses);
    fclose(file);
    assert_int_equal(moe_trace_save(again, f->path, MOE_TRACE_ORACLE_GENERAL, 0, NULL), MOE_OK);
    assert_int_equal(open_as(&third, f, MOE_TRACE_ORACLE_GENERAL, 5, 64, NULL), MOE_OK);
    assert_same(again, third);
    moe_trace_close(&third);
    moe_trace_close(&again);
    moe_trace_close(&trace);
}

/* Passes of one layer and one expert: ids that rise from pass to pass do not join them. */
static void test_oracle_keeps_passes(void **state)
{
    const fixture *f = *state;
    static const char text[] = "{\"layers\": [[1]]}\n{\"layers\": [[2]]}\n{\"layers\": [[2, 3]]}\n"
                               "{\"layers\": [[0]]}\n";
    moe_trace *trace = NULL;
    moe_trace *again = NULL;
    write_file(f, text, sizeof text - 1);
    assert_int_equal(open_as(&trace, f, MOE_TRACE_JSONL, 1, 4, NULL), MOE_OK);
    assert_int_equal(trace->n_passes, 4);
    assert_int_equal(moe_trace_save(trace, f->path, MOE_TRACE_ORACLE_GENERAL, 0, NULL), MOE_OK);
    assert_int_equal(open_as(&again, f, MOE_TRACE_ORACLE_GENERAL, 1, 4, NULL), MOE_OK);
    assert_int_equal(again->n_passes, 4);
    assert_memory_equal(again->start, trace->start, 5 * sizeof *again->start);
    assert_memory_equal(again->ids, trace->ids, 5 * sizeof *again->ids);
    moe_trace_close(&again);
    moe_trace_close(&trace);
}

static void test_oracle_by_hand(void **state)
{
    const fixture *f = *state;
    /* time 5: ids 1, 6 (layer 1 of 4 experts); time 6: id 1 */
    const uint8_t bytes[] = {
        5, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 2,   0,   0,   0,   0,   0,   0,   0,
        5, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255,
        6, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255};
    moe_trace *trace = NULL;
    moe_error err = {""};
    write_file(f, bytes, sizeof bytes);
    assert_int_equal(open_as(&trace, f, MOE_TRACE_ORACLE_GENERAL, 3, 4, &err), MOE_OK);
    assert_int_equal(trace->n_rows, 2);
    assert_int_equal(moe_trace_list_of(trace, 0, 0).ids[0], 1);
    assert_int_equal(moe_trace_list_of(trace, 0, 1).ids[0], 2);
    assert_int_equal(moe_trace_list_of(trace, 0, 2).n, 0);
    assert_int_equal(moe_trace_list_of(trace, 1, 0).n, 1);
    moe_trace_close(&trace);
    assert_int_equal(open_as(&trace, f, MOE_TRACE_ORACLE_GENERAL, 1, 4, &err), MOE_ERR_FORMAT);
    assert_non_null(strstr(err.message, "record 1: id 6"));
    write_file(f, bytes, sizeof bytes - 3);
    assert_int_equal(open_as(&trace, f, MOE_TRACE_ORACLE_GENERAL, 3, 4, &err), MOE_ERR_FORMAT);
    assert_non_null(strstr(err.message, "21 bytes after"));
    write_file(f, bytes, 0);
    assert_int_equal(open_as(&trace, f, MOE_TRACE_ORACLE_GENERAL, 3, 4, &err), MOE_ERR_FORMAT);
    assert_null(trace);
}

static void test_writer_errors(void **state)
{
    const fixture *f = *state;
    moe_trace_writer *writer = NULL;
    moe_error err = {""};
    char nowhere[160];
    snprintf(nowhere, sizeof nowhere, "%s/no/such", f->folder);
    assert_int_equal(moe_trace_writer_open(&writer, nowhere, 1, 4, false, false, &err), MOE_ERR_IO);
    assert_null(writer);
    moe_trace *trace = generated(1);
    assert_int_equal(moe_trace_save(trace, nowhere, MOE_TRACE_AUTO, 0, &err), MOE_ERR_IO);
    assert_int_equal(moe_trace_save(trace, nowhere, MOE_TRACE_ORACLE_GENERAL, 0, &err), MOE_ERR_IO);
    /* A disk that is full says so at the latest when the file is closed. */
    if (access("/dev/full", W_OK) == 0) {
        assert_int_equal(moe_trace_save(trace, "/dev/full", MOE_TRACE_JSONL, 0, &err), MOE_ERR_IO);
        assert_int_equal(moe_trace_save(trace, "/dev/full", MOE_TRACE_ORACLE_GENERAL, 0, &err),
                         MOE_ERR_IO);
    }
    moe_trace_close(&trace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_rows),
        cmocka_unit_test(test_forecasts),
        cmocka_unit_test(test_passes_sequences_gates),
        cmocka_unit_test(test_malformed),
        cmocka_unit_test(test_lines_are_bounded),
        cmocka_unit_test(test_refused_options),
        cmocka_unit_test(test_jsonl_keeps_all),
        cmocka_unit_test(test_oracle_keeps_accesses),
        cmocka_unit_test(test_oracle_keeps_passes),
        cmocka_unit_test(test_oracle_by_hand),
        cmocka_unit_test(test_writer_errors),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
