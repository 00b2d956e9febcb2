/* SPDX-License-Identifier: MIT */
/* What opening a model allocates: little for hostile files, and every failure is reported. The
 * allocation functions are wrapped by the linker. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/families/families.h"
#include "runtime/program/program.h"
#include "tests/model/gguf_cases.h"

static uint64_t requested_bytes; /* since the last reset, all requests together */
static long calls_until_failure; /* < 0: never */

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);

static bool refused(uint64_t bytes)
{
    requested_bytes += bytes;
    return calls_until_failure >= 0 && calls_until_failure-- == 0;
}

void *__wrap_malloc(size_t size)
{
    return refused(size) ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    return refused((uint64_t)count * size) ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *old, size_t size)
{
    return refused(size) ? NULL : __real_realloc(old, size);
}

static int open_all(const uint8_t *bytes, size_t size, moe_error *err)
{
    moe_gguf *gguf = NULL;
    moe_model_config config;
    moe_tensor_map map = {0};
    int status = moe_gguf_parse(&gguf, bytes, size, err);
    if (status == MOE_OK) {
        status = moe_model_config_read(&config, gguf, err);
    }
    if (status == MOE_OK) {
        status = moe_tensor_map_build(&map, &config, gguf, err);
    }
    moe_tensor_map_free(&map);
    moe_gguf_close(&gguf);
    return status;
}

static void test_hostile_files_get_little(void **state)
{
    (void)state;
    calls_until_failure = -1;
    for (size_t i = 0; i < n_gguf_cases; i++) {
        gguf_builder *b = gguf_case_base();
        size_t size;
        const uint8_t *bytes = gguf_case_make(&gguf_cases[i], b, &size);
        requested_bytes = 0;
        assert_int_equal(open_all(bytes, size, NULL), gguf_cases[i].status);
        if (requested_bytes > 12 * size + 8192) {
            fail_msg("'%s': %zu bytes made it ask for %llu", gguf_cases[i].name, size,
                     (unsigned long long)requested_bytes);
        }
        gb_free(b);
    }
}

/* The files that get most for their bytes: many small strings, many small keys. */
static void test_dense_files(void **state)
{
    (void)state;
    calls_until_failure = -1;
    for (int kind = 0; kind < 2; kind++) {
        gguf_builder *b = gb_new();
        if (kind == 0) {
            gb_array_tokens(b, "t", 100000);
        }
        for (int i = 0; kind == 1 && i < 50000; i++) {
            char key[8] = {(char)('a' + i % 26), (char)('a' + i / 26 % 26),
                           (char)('a' + i / 676 % 26), (char)('a' + i / 17576)};
            gb_u8(b, key, 0);
        }
        size_t size;
        const uint8_t *bytes = gb_finish(b, &size);
        requested_bytes = 0;
        assert_int_equal(open_all(bytes, size, NULL), MOE_ERR_FORMAT); /* no architecture */
        assert_true(requested_bytes <= 12 * size + 8192);
        gb_free(b);
    }
}

/* As a file, where the reader allocates for the header and the name too. */
static void test_every_allocation_of_open_may_fail(void **state)
{
    char path[] = "/tmp/test_memory.XXXXXX";
    (void)state;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    gguf_builder *b = gguf_case_base();
    assert_int_equal(gb_write(b, path), 0);
    gb_free(b);
    int n_failures = 0;
    int status;
    do {
        moe_gguf *gguf = NULL;
        moe_error err = {""};
        calls_until_failure = n_failures++;
        status = moe_gguf_open(&gguf, path, &err);
        bool reached = calls_until_failure < 0;
        calls_until_failure = -1;
        assert_int_equal(status, reached ? MOE_ERR_MEMORY : MOE_OK);
        assert_true(!reached || strstr(err.message, "out of memory") != NULL);
        moe_gguf_close(&gguf);
    } while (status != MOE_OK);
    assert_true(n_failures > 6);
    unlink(path);
}

static void test_every_allocation_may_fail(void **state)
{
    (void)state;
    gb_model model = gb_model_preset("deepseek2");
    gguf_builder *b = gb_model_build(&model);
    gb_array_tokens(b, "tokenizer.ggml.tokens", 96);
    size_t size;
    const uint8_t *bytes = gb_finish(b, &size);
    int n_failures = 0;
    int status;
    do {
        moe_error err = {""};
        calls_until_failure = n_failures++;
        status = open_all(bytes, size, &err);
        bool reached = calls_until_failure < 0;
        calls_until_failure = -1;
        assert_int_equal(status, reached ? MOE_ERR_MEMORY : MOE_OK);
        assert_true(!reached || strstr(err.message, "out of memory") != NULL);
    } while (status != MOE_OK);
    assert_true(n_failures > 8);
    gb_free(b);
}

int main(void)
{
    calls_until_failure = -1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hostile_files_get_little),
        cmocka_unit_test(test_dense_files),
        cmocka_unit_test(test_every_allocation_may_fail),
        cmocka_unit_test(test_every_allocation_of_open_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
