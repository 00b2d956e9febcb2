/* SPDX-License-Identifier: MIT */
/* Perplexity of the quantised oracles over their text, against another engine's figure and against
 * their dequantised weights in float arithmetic (tests/oracle/README.md has the method).
 * Usage: test_perplexity ORACLE-FOLDER. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>

#include "engine_fixture.h"
#include "engine_options.h"
#include "npy_file.h"

#define N_LINES 8

static const char *folder;

typedef struct likelihood {
    const int *tokens;
    size_t n_tokens, n_vocab;
    double sum; /* of negative logarithms */
    size_t n;
} likelihood;

static bool add_position(size_t position, const float *logits, void *user)
{
    likelihood *l = user;
    if (position + 1 == l->n_tokens) {
        return true;
    }
    double top = -INFINITY;
    for (size_t i = 0; i < l->n_vocab; i++) {
        top = fmax(top, (double)logits[i]);
    }
    double sum = 0.0;
    for (size_t i = 0; i < l->n_vocab; i++) {
        sum += exp((double)logits[i] - top);
    }
    l->sum += top + log(sum) - (double)logits[l->tokens[position + 1]];
    l->n++;
    return true;
}

static double perplexity(const char *name, moe_kernels kernels)
{
    char path[1024];
    moe_engine_options options = oracle_options(path, folder, name);
    options.kv_cache = MOE_KV_CACHE_F32;
    lab_of(&options)->kernels = kernels;
    moe_engine *engine = open_engine(&options);
    moe_engine_info info = {.struct_size = sizeof info};
    moe_engine_get_info(engine, &info);
    likelihood l = {.n_vocab = info.n_vocab};
    snprintf(path, sizeof path, "%s/%s/text.txt", folder, name);
    for (int line = 0; line < N_LINES; line++) {
        int *tokens = ints_read(path, line, &l.n_tokens);
        assert_non_null(tokens);
        assert_int_equal(l.n_tokens, 256);
        l.tokens = tokens;
        moe_session *session = greedy_session(engine);
        assert_int_equal(moe_session_score(session, tokens, l.n_tokens, add_position, &l, NULL),
                         MOE_OK);
        moe_session_close(&session);
        free(tokens);
    }
    moe_engine_close(&engine);
    assert_int_equal(l.n, N_LINES * 255);
    return exp(l.sum / (double)l.n);
}

static void read_expected(const char *name, double *dequantised, double *other_engine)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s/perplexity.txt", folder, name);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    double unused;
    int n = fscanf(file, "float-weights %lf dequantised-weights %lf llama.cpp %lf", &unused,
                   dequantised, other_engine);
    fclose(file);
    assert_int_equal(n, 3);
}

static void test_model(void **state)
{
    const char *name = *state;
    double dequantised, other;
    read_expected(name, &dequantised, &other);
    double ours = perplexity(name, MOE_KERNELS_NATIVE);
    double of_other = 100.0 * (ours / other - 1.0);
    double of_dequantised = 100.0 * (ours / dequantised - 1.0);
    print_message("%s: %.4f; other engine %.4f (%+.3f %%), dequantised %.4f (%+.3f %%)\n", name,
                  ours, other, of_other, dequantised, of_dequantised);
    assert_true(fabs(of_other) <= 0.5);
    assert_true(fabs(of_dequantised) <= 0.5);
    if (strcmp(name, "olmoe-q4_k") == 0) {
        assert_true(ours == perplexity(name, MOE_KERNELS_AVX2));
    }
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: test_perplexity ORACLE-FOLDER\n");
        return 2;
    }
    folder = argv[1];
    const struct CMUnitTest tests[] = {
        {"olmoe-q8_0", test_model, NULL, NULL, (void *)"olmoe-q8_0"},
        {"qwen3moe-q8_0", test_model, NULL, NULL, (void *)"qwen3moe-q8_0"},
        {"olmoe-q4_k", test_model, NULL, NULL, (void *)"olmoe-q4_k"},
        {"qwen3moe-q4_k", test_model, NULL, NULL, (void *)"qwen3moe-q4_k"},
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
