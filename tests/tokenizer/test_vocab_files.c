/* SPDX-License-Identifier: MIT */
/* llama.cpp's vocabulary files: every case gives exactly the ids of the model's own tokenizer, and
 * decoding gives the text back. Usage: test_vocab_files DATA_FOLDER */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/model/tokenizer.h"
#include "tests/tokenizer/tokenizer_fixture.h"

static const char *data_folder;

static const char separator[] = "\n__ggml_vocab_test__\n";

static void check_round_trip(const moe_tokenizer *tokenizer, const int32_t *tokens, size_t n,
                             const char *text, size_t size)
{
    char *out = malloc(moe_text_stream_max(tokenizer) * (n + 1));
    assert_non_null(out);
    moe_text_stream stream = {0};
    size_t written = 0;
    for (size_t i = 0; i < n; i++) {
        written += moe_text_stream_push(&stream, tokenizer, tokens[i], out + written);
    }
    written += moe_text_stream_finish(&stream, out + written);
    assert_int_equal(written, size);
    assert_memory_equal(out, text, size);
    free(out);
}

static void check_case(const moe_tokenizer *tokenizer, const char *text, size_t size,
                       char **expected)
{
    moe_error err;
    int32_t *tokens;
    size_t n;
    assert_int_equal(moe_tokenizer_encode(tokenizer, text, size, 0, &tokens, &n, &err), MOE_OK);
    char *at = *expected;
    char *line_end = strchr(at, '\n');
    assert_non_null(line_end);
    for (size_t i = 0; i < n; i++) {
        while (*at == ' ') {
            at++;
        }
        if (at == line_end) {
            fail_msg("\"%.*s\": more than the expected %zu tokens", (int)size, text, i);
        }
        long id = strtol(at, &at, 10);
        if (id != tokens[i]) {
            fail_msg("\"%.*s\": token %zu is %d, not %ld", (int)size, text, i, tokens[i], id);
        }
    }
    while (*at == ' ') {
        at++;
    }
    if (at != line_end) {
        fail_msg("\"%.*s\": only %zu tokens", (int)size, text, n);
    }
    *expected = line_end + 1;
    check_round_trip(tokenizer, tokens, n, text, size);
    free(tokens);
}

static void check_vocabulary(const char *name)
{
    char path[4096];
    moe_error err;
    moe_gguf *gguf;
    moe_tokenizer *tokenizer;
    snprintf(path, sizeof path, "%s/ggml-vocab-%s.gguf", data_folder, name);
    if (moe_gguf_open(&gguf, path, &err) != MOE_OK ||
        moe_tokenizer_create(&tokenizer, gguf, &err) != MOE_OK) {
        fail_msg("%s", err.message);
    }
    moe_gguf_close(&gguf); /* the tokenizer must not need it any more */

    size_t size;
    size_t expected_size;
    snprintf(path, sizeof path, "%s/ggml-vocab-%s.gguf.inp", data_folder, name);
    char *cases = fixture_read_file(path, &size);
    snprintf(path, sizeof path, "%s/ggml-vocab-%s.gguf.out", data_folder, name);
    char *expected = fixture_read_file(path, &expected_size);
    assert_non_null(cases);
    assert_non_null(expected);
    char *line = expected;
    size_t n_cases = 0;
    for (char *at = cases; *at != '\0'; n_cases++) {
        char *end = strstr(at, separator);
        assert_non_null(end);
        check_case(tokenizer, at, (size_t)(end - at), &line);
        at = end + strlen(separator);
    }
    assert_int_equal(*line, '\0');
    assert_true(n_cases >= 40);
    free(cases);
    free(expected);
    moe_tokenizer_destroy(&tokenizer);
}

static void test_gpt2(void **state)
{
    (void)state;
    check_vocabulary("gpt-2");
}

static void test_llama_spm(void **state)
{
    (void)state;
    check_vocabulary("llama-spm");
}

static void test_phi3(void **state)
{
    (void)state;
    check_vocabulary("phi-3");
}

static void test_deepseek_llm(void **state)
{
    (void)state;
    check_vocabulary("deepseek-llm");
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s DATA_FOLDER\n", argv[0]);
        return 2;
    }
    data_folder = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt2),
        cmocka_unit_test(test_llama_spm),
        cmocka_unit_test(test_phi3),
        cmocka_unit_test(test_deepseek_llm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
