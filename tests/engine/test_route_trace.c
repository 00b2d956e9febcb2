/* SPDX-License-Identifier: MIT */
/* A recorded trace says what the engine did: one line for every evaluated row, and as many distinct
 * (pass, layer, expert) as the cache counted accesses. Recording changes no token. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <json-c/json.h>

#include "engine_fixture.h"
#include "engine_options.h"

#define N_DECODE 6

static const char *model_path;

static json_object *field(json_object *object, const char *name)
{
    json_object *value = NULL;
    assert_true(json_object_object_get_ex(object, name, &value));
    return value;
}

typedef struct trace_sums {
    uint64_t n_rows;
    uint64_t n_accesses;
    int64_t pass; /* of the last row */
    bool *used;   /* [n_layer][n_expert] in that pass */
    int64_t next_position[2];
} trace_sums;

static void check_layer(const moe_engine_info *info, json_object *ids, json_object *gates,
                        bool *used, trace_sums *sums)
{
    size_t n = json_object_array_length(ids);
    assert_true(n == 0 || n == info->n_expert_used);
    assert_int_equal(json_object_array_length(gates), n);
    int64_t last = -1;
    for (size_t i = 0; i < n; i++) {
        int64_t id = json_object_get_int64(json_object_array_get_idx(ids, i));
        assert_true(id > last && id < info->n_expert);
        assert_true(json_object_get_double(json_object_array_get_idx(gates, i)) > 0.0);
        sums->n_accesses += !used[id];
        used[id] = true;
        last = id;
    }
}

static void check_line(const moe_engine_info *info, const char *line, trace_sums *sums)
{
    json_object *row = json_tokener_parse(line);
    assert_non_null(row);
    int64_t pass = json_object_get_int64(field(row, "pass"));
    int64_t sequence = json_object_get_int64(field(row, "seq"));
    assert_true(pass == sums->pass || pass == sums->pass + 1);
    if (pass != sums->pass) {
        memset(sums->used, 0, (size_t)info->n_layer * info->n_expert);
        sums->pass = pass;
    }
    assert_in_range(sequence, 0, 1);
    assert_int_equal(json_object_get_int64(field(row, "tok")), sums->next_position[sequence]++);
    json_object *layers = field(row, "layers");
    json_object *gates = field(row, "gates");
    assert_int_equal(json_object_array_length(layers), info->n_layer);
    for (size_t l = 0; l < info->n_layer; l++) {
        check_layer(info, json_object_array_get_idx(layers, l), json_object_array_get_idx(gates, l),
                    sums->used + l * info->n_expert, sums);
    }
    sums->n_rows++;
    json_object_put(row);
}

/* Two sessions of different lengths, decoded together. */
static void run(const char *trace_path, int32_t *tokens, moe_engine_info *info,
                moe_engine_stats *stats)
{
    moe_engine_options options;
    moe_engine_options_init(&options);
    options.model_path = model_path;
    options.n_threads = 2;
    options.prefill_chunk = 16;
    options.context = 128;
    options.expert_cache_share = 0.5;
    options.policy = "gate-score"; /* needs gates */
    lab_of(&options)->trace_path = trace_path;
    lab_of(&options)->trace_gates = trace_path != NULL;
    moe_engine *engine = open_engine(&options);
    info->struct_size = sizeof *info;
    moe_engine_get_info(engine, info);
    moe_session *sessions[2] = {greedy_session(engine), greedy_session(engine)};
    int32_t prompt[40];
    make_prompt(prompt, 40, info->n_vocab, 3);
    feed(sessions[0], prompt, 40);
    feed(sessions[1], prompt + 5, 9);
    size_t n_taken = 0;
    int32_t other[64];
    while (n_taken < N_DECODE) {
        assert_int_equal(moe_step(engine, sessions, 2, NULL), MOE_OK);
        n_taken += moe_session_take(sessions[0], tokens + n_taken, N_DECODE - n_taken);
        (void)moe_session_take(sessions[1], other, 64);
    }
    stats->struct_size = sizeof *stats;
    moe_engine_get_stats(engine, stats);
    moe_session_close(&sessions[0]);
    moe_session_close(&sessions[1]);
    moe_engine_close(&engine);
}

static void agrees_with_the_counters(void **state)
{
    (void)state;
    char path[] = "/tmp/moe-trace-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    moe_engine_info info = {.struct_size = sizeof info};
    moe_engine_stats stats;
    int32_t tokens[N_DECODE];
    run(path, tokens, &info, &stats);
    trace_sums sums = {.pass = -1};
    sums.used = calloc((size_t)info.n_layer * info.n_expert, 1);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    char *line = NULL;
    size_t capacity = 0;
    assert_true(getline(&line, &capacity, file) > 0); /* what the trace is */
    assert_non_null(strstr(line, "moe_trace"));
    while (getline(&line, &capacity, file) > 0) {
        check_line(&info, line, &sums);
    }
    fclose(file);
    unlink(path);
    assert_int_equal(sums.n_rows, stats.prompt_tokens + stats.decode_tokens);
    assert_int_equal(sums.pass + 1, stats.passes);
    assert_int_equal(sums.n_accesses, stats.expert_hits + stats.expert_misses);
    assert_true(stats.expert_misses > 0);
    free(line);
    free(sums.used);

    int32_t untraced[N_DECODE];
    run(NULL, untraced, &info, &stats);
    assert_memory_equal(tokens, untraced, sizeof tokens);
}

static void cannot_be_written(void **state)
{
    (void)state;
    moe_engine_options options;
    moe_engine_options_init(&options);
    options.model_path = model_path;
    options.context = 64;
    lab_of(&options)->trace_path = "/nonexistent/trace.jsonl";
    moe_engine *engine = NULL;
    moe_error error;
    assert_int_equal(moe_engine_open(&engine, &options, &error), MOE_ERR_IO);
    assert_null(engine);
    assert_non_null(strstr(error.message, "/nonexistent/trace.jsonl"));

    lab_of(&options)->trace_path = "/dev/full";
    engine = open_engine(&options);
    moe_session *session = greedy_session(engine);
    feed(session, (int32_t[]){1, 2}, 2);
    assert_int_equal(moe_step(engine, &session, 1, &error), MOE_ERR_IO);
    assert_non_null(strstr(error.message, "/dev/full"));
    assert_int_equal(moe_session_n_pending(session), 2);
    moe_session_close(&session);
    moe_engine_close(&engine);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: test_trace_recording MODEL.gguf\n");
        return 2;
    }
    model_path = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_the_counters),
        cmocka_unit_test(cannot_be_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
