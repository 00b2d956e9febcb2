/* SPDX-License-Identifier: MIT */
/* An engine of the vocabulary alone: the same tokens as the model's, at the cost of the header, and
 * a clear refusal of everything else.
 * Usage: test_vocabulary MODEL.gguf VOCABULARY.gguf (a file without weights). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <dirent.h>
#include <sys/stat.h>

#include <moe/calibrate.h>
#include <moe/lab.h>
#include <moe/model_file.h>

#include "engine_fixture.h"

/* Headers are read in pieces of this many bytes. */
#define PIECE (1 << 20)

static const char *model_path;
static const char *vocabulary_path;
static const char text[] = "Hello, world! The cat sat on 12 mats. \xc3\xa9t\xc3\xa9 <|endoftext|>";

static moe_engine *open_vocabulary(const char *path)
{
    moe_engine_options options;
    moe_engine_options_init(&options);
    options.model_path = path;
    options.vocabulary_only = true;
    return open_engine(&options);
}

static uint64_t bytes_read_so_far(void)
{
    unsigned long long n = 0;
    FILE *file = fopen("/proc/self/io", "r");
    if (file != NULL) {
        (void)fscanf(file, "rchar: %llu", &n);
        fclose(file);
    }
    return n;
}

static int n_threads(void)
{
    DIR *directory = opendir("/proc/self/task");
    assert_non_null(directory);
    int n = 0;
    while (readdir(directory) != NULL) {
        n++;
    }
    closedir(directory);
    return n;
}

static void same_tokens(void **state)
{
    (void)state;
    moe_engine_options options;
    moe_engine_options_init(&options);
    options.model_path = model_path;
    options.context = 64;
    moe_engine *engines[2] = {open_engine(&options), open_vocabulary(model_path)};
    int32_t *tokens[2];
    size_t n[2];
    for (int i = 0; i < 2; i++) {
        assert_int_equal(moe_tokenize(engines[i], text, strlen(text), MOE_TOKENIZE_ADD_SPECIAL,
                                      &tokens[i], &n[i], NULL),
                         MOE_OK);
    }
    assert_int_equal(n[0], n[1]);
    assert_memory_equal(tokens[0], tokens[1], n[0] * sizeof *tokens[0]);
    for (size_t i = 0; i < n[0]; i++) {
        size_t sizes[2];
        const char *pieces[2];
        for (int e = 0; e < 2; e++) {
            pieces[e] = moe_token_piece(engines[e], tokens[e][i], true, &sizes[e]);
        }
        assert_int_equal(sizes[0], sizes[1]);
        assert_memory_equal(pieces[0], pieces[1], sizes[0]);
    }
    moe_engine_info infos[2];
    for (int i = 0; i < 2; i++) {
        infos[i].struct_size = sizeof infos[i];
        assert_int_equal(moe_engine_get_info(engines[i], &infos[i]), MOE_OK);
        moe_free(tokens[i]);
    }
    assert_string_equal(infos[0].model_name, infos[1].model_name);
    assert_string_equal(infos[0].chat_template, infos[1].chat_template);
    moe_engine_close(&engines[0]);
    moe_engine_close(&engines[1]);
}

/* The header, no thread, and none of the weights. */
static void cheap(void **state)
{
    (void)state;
    struct stat file;
    moe_file *header = NULL;
    moe_file_summary summary = {.struct_size = sizeof summary};
    assert_int_equal(stat(model_path, &file), 0);
    assert_int_equal(moe_file_open(&header, model_path, NULL), MOE_OK);
    moe_file_get_summary(header, &summary);
    moe_file_close(&header);
    int threads = n_threads();
    uint64_t before = bytes_read_so_far();
    moe_engine *engine = open_vocabulary(model_path);
    uint64_t n_read = bytes_read_so_far() - before;
    assert_int_equal(n_threads(), threads);
    print_message("read %llu of %llu bytes\n", (unsigned long long)n_read,
                  (unsigned long long)file.st_size);
    uint64_t header_bytes = (uint64_t)file.st_size - summary.expert_bytes - summary.resident_bytes;
    assert_true(summary.resident_bytes > 2 * PIECE);
    assert_true(n_read <= header_bytes + PIECE + (1 << 16));
    moe_engine_close(&engine);
}

/* What needs a model says so. */
static void refusals(void **state)
{
    (void)state;
    moe_engine *engine = open_vocabulary(vocabulary_path);
    moe_engine_info info = {.struct_size = sizeof info};
    moe_engine_get_info(engine, &info);
    assert_true(info.n_vocab > 1000 && info.n_layer == 0);
    assert_string_equal(info.device, "");
    moe_engine_stats stats;
    memset(&stats, 0xff, sizeof stats);
    stats.struct_size = sizeof stats;
    moe_engine_get_stats(engine, &stats);
    assert_true(stats.passes == 0 && stats.lossy.mean_kl == 0.0);
    moe_session *session = NULL;
    moe_error error;
    double speed;
    moe_calibrate_options calibrate;
    moe_calibrate_options_init(&calibrate);
    int statuses[] = {moe_session_create(&session, engine, NULL, &error),
                      moe_session_load(&session, engine, "/dev/null", &error),
                      moe_calibrate(engine, &calibrate, &error),
                      moe_engine_measure_bandwidth(engine, &speed, &error)};
    for (size_t i = 0; i < sizeof statuses / sizeof statuses[0]; i++) {
        assert_int_equal(statuses[i], MOE_ERR_UNSUPPORTED);
    }
    assert_null(session);
    assert_non_null(strstr(error.message, "vocabulary alone"));
    moe_engine_close(&engine);
}

/* The file has a vocabulary and no model, which opening it as a model tells. */
static void without_weights(void **state)
{
    (void)state;
    moe_engine *engine = open_vocabulary(vocabulary_path);
    int32_t *tokens = NULL;
    size_t n = 0;
    assert_int_equal(moe_tokenize(engine, "Hello", 5, 0, &tokens, &n, NULL), MOE_OK);
    assert_int_equal(n, 1);
    size_t size;
    assert_memory_equal(moe_token_piece(engine, tokens[0], false, &size), "Hello", 5);
    moe_free(tokens);
    moe_engine_close(&engine);
    moe_engine_options options;
    moe_engine_options_init(&options);
    options.model_path = vocabulary_path;
    assert_int_not_equal(moe_engine_open(&engine, &options, NULL), MOE_OK);
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: test_vocabulary MODEL.gguf VOCABULARY.gguf\n");
        return 2;
    }
    model_path = argv[1];
    vocabulary_path = argv[2];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_tokens),
        cmocka_unit_test(cheap),
        cmocka_unit_test(refusals),
        cmocka_unit_test(without_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
