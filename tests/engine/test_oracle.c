/* SPDX-License-Identifier: MIT */
/* Every tiny model of tests/oracle against what the reference implementation computes for it:
 * logits within 1e-4 of the largest, the same argmax, the same 32 greedy tokens. */
#include <dirent.h>
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

#include <moe/moe.h>

#include "npy_file.h"
#include "tests/test_size.h"

#define TOLERANCE       1e-4
#define ROUGH_TOLERANCE 3e-2
#define N_CASES         3
#define LONG_PROMPT     400 /* tokens; when tests are small, one this long is evaluated once */

static const char *oracle_folder;

#define MAX_MODELS   256
#define LEAST_MODELS 50 /* fewer were found: the folder is not the whole one */
#define NAME_ROOM    64

static moe_engine *open_model(const char *name)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s/model.gguf", oracle_folder, name);
    moe_engine_options options;
    moe_engine_options_init(&options);
    options.model_path = path;
    options.n_threads = 1; /* of tiny models; exactness has the same bits by more of them */
    options.kv_cache = MOE_KV_CACHE_F32;
    moe_error error;
    moe_engine *engine = NULL;
    if (moe_engine_open(&engine, &options, &error) != MOE_OK) {
        fail_msg("%s: %s", name, error.message);
    }
    return engine;
}

typedef struct comparison {
    const float *expected; /* [n_kept][n_vocab] */
    const int *kept;
    size_t n_kept, n_vocab, next;
    double max_delta, max_value;
    size_t n_argmax_differs;
} comparison;

static size_t argmax(const float *x, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++) {
        best = x[i] > x[best] ? i : best;
    }
    return best;
}

/* Of quantised experts, whose products take activations of 8 bits; the reference has the experts'
 * very numbers, but takes floats. */
static bool is_quantised(const char *name)
{
    return strstr(name, "-mxfp4") != NULL;
}

static bool compare_position(size_t position, const float *logits, void *user)
{
    comparison *c = user;
    if (c->next == c->n_kept || (size_t)c->kept[c->next] != position) {
        return true;
    }
    const float *expected = c->expected + c->next++ * c->n_vocab;
    for (size_t i = 0; i < c->n_vocab; i++) {
        c->max_delta = fmax(c->max_delta, fabs((double)logits[i] - expected[i]));
        c->max_value = fmax(c->max_value, fabs((double)expected[i]));
    }
    c->n_argmax_differs += argmax(logits, c->n_vocab) != argmax(expected, c->n_vocab);
    return true;
}

static void check_logits(moe_engine *engine, const char *name, int number, const int *prompt,
                         size_t n_prompt)
{
    char path[1024];
    comparison c = {0};
    snprintf(path, sizeof path, "%s/%s/%d.logits.npy", oracle_folder, name, number);
    float *expected = npy_read(path, &c.n_kept, &c.n_vocab);
    snprintf(path, sizeof path, "%s/%s/%d.positions.txt", oracle_folder, name, number);
    size_t n_kept;
    int *kept = ints_read(path, 0, &n_kept);
    assert_non_null(expected);
    assert_non_null(kept);
    assert_int_equal(n_kept, c.n_kept);
    c.expected = expected;
    c.kept = kept;

    moe_session *session;
    moe_error error;
    assert_int_equal(moe_session_create(&session, engine, NULL, &error), MOE_OK);
    assert_int_equal(moe_session_score(session, prompt, n_prompt, compare_position, &c, &error),
                     MOE_OK);
    assert_int_equal(c.next, c.n_kept);
    printf("%-22s case %d: max|delta|/max|ref| = %.2e\n", name, number, c.max_delta / c.max_value);
    if (is_quantised(name)) {
        assert_true(c.max_delta <= ROUGH_TOLERANCE * c.max_value);
        assert_true(c.n_argmax_differs <= c.n_kept / 10);
    } else {
        assert_true(c.max_delta <= TOLERANCE * c.max_value);
        assert_int_equal(c.n_argmax_differs, 0);
    }
    moe_session_close(&session);
    free(expected);
    free(kept);
}

static void check_greedy(moe_engine *engine, const char *name, int number, const int *prompt,
                         size_t n_prompt)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s/%d.greedy.txt", oracle_folder, name, number);
    size_t n_expected;
    int *expected = ints_read(path, 0, &n_expected);
    assert_non_null(expected);
    assert_int_equal(n_expected, 32);

    moe_session_options options;
    moe_session_options_init(&options);
    options.sampling.temperature = 0.0f;
    moe_session *session;
    moe_error error;
    assert_int_equal(moe_session_create(&session, engine, &options, &error), MOE_OK);
    assert_int_equal(moe_session_feed(session, prompt, n_prompt, &error), MOE_OK);
    for (size_t i = 0; i < n_expected; i++) {
        int32_t token;
        do { /* a long prompt takes several steps */
            assert_int_equal(moe_step(engine, &session, 1, &error), MOE_OK);
        } while (moe_session_n_pending(session) > 0);
        assert_int_equal(moe_session_take(session, &token, 1), 1);
        assert_int_equal(token, expected[i]);
    }
    moe_session_close(&session);
    free(expected);
}

static void test_model(void **state)
{
    const char *name = *state;
    moe_engine *engine = open_model(name);
    for (int number = 0; number < N_CASES; number++) {
        char path[1024];
        snprintf(path, sizeof path, "%s/%s/prompts.txt", oracle_folder, name);
        size_t n_prompt;
        int *prompt = ints_read(path, number, &n_prompt);
        assert_non_null(prompt);
        check_logits(engine, name, number, prompt, n_prompt);
        if (!is_quantised(name) && !(test_is_small() && n_prompt >= LONG_PROMPT)) {
            check_greedy(engine, name, number, prompt, n_prompt);
        }
        free(prompt);
    }
    moe_engine_close(&engine);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* Every folder that has logits, in order; their number. */
static size_t find_models(char names[MAX_MODELS][NAME_ROOM])
{
    size_t n = 0;
    DIR *folder = opendir(oracle_folder);
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        char path[1024];
        snprintf(path, sizeof path, "%s/%s/0.logits.npy", oracle_folder, entry->d_name);
        if (strlen(entry->d_name) < NAME_ROOM && n < MAX_MODELS && access(path, R_OK) == 0) {
            strcpy(names[n++], entry->d_name);
        }
    }
    if (folder != NULL) {
        closedir(folder);
    }
    qsort(names, n, NAME_ROOM, by_name);
    return n;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: test_oracle FOLDER\n");
        return 2;
    }
    oracle_folder = argv[1];
    static char names[MAX_MODELS][NAME_ROOM];
    static struct CMUnitTest tests[MAX_MODELS];
    size_t n = find_models(names);
    if (n < LEAST_MODELS) {
        fprintf(stderr, "%s holds %zu models, not %d or more\n", oracle_folder, n, LEAST_MODELS);
        return 1;
    }
    size_t n_tests = 0;
    for (size_t i = 0; i < n; i++) {
        if (test_leaves_out((uint32_t)i, 3)) {
            continue;
        }
        tests[n_tests++] = (struct CMUnitTest){
            .name = names[i], .test_func = test_model, .initial_state = names[i]};
    }
    return _cmocka_run_group_tests("oracle", tests, n_tests, NULL, NULL);
}
