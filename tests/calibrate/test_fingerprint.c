/* SPDX-License-Identifier: MIT */
/* A model's fingerprint: the same for a copy, another for other weights of the same shape, at the
 * cost of a small sample. Usage: test_fingerprint MODEL.gguf (of more than 32 tensors). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/engine/engine_state.h"

static const char *model_path;
static char copy_path[] = "/tmp/moe-fingerprint-XXXXXX";

static uint64_t fingerprint_of(const char *path)
{
    moe_gguf *gguf = NULL;
    uint64_t fingerprint = 0;
    moe_error error;
    if (moe_gguf_open(&gguf, path, &error) != MOE_OK) {
        fail_msg("%s", error.message);
    }
    moe_model_reader_options reading = {.gguf = gguf};
    if (moe_model_fingerprint(&reading, &fingerprint, &error) != MOE_OK) {
        fail_msg("%s", error.message);
    }
    moe_gguf_close(&gguf);
    return fingerprint;
}

static int setup(void **state)
{
    (void)state;
    int fd = mkstemp(copy_path);
    assert_true(fd >= 0);
    FILE *in = fopen(model_path, "rb");
    FILE *out = fdopen(fd, "wb");
    assert_true(in != NULL && out != NULL);
    static char buffer[1 << 16];
    for (size_t n; (n = fread(buffer, 1, sizeof buffer, in)) > 0;) {
        assert_int_equal(fwrite(buffer, 1, n, out), n);
    }
    fclose(in);
    return fclose(out);
}

static int teardown(void **state)
{
    (void)state;
    return unlink(copy_path);
}

static void flip(uint64_t offset)
{
    FILE *file = fopen(copy_path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, (long)offset, SEEK_SET), 0);
    int byte = fgetc(file);
    assert_int_equal(fseek(file, (long)offset, SEEK_SET), 0);
    assert_true(byte != EOF && fputc(byte ^ 1, file) != EOF);
    assert_int_equal(fclose(file), 0);
}

static void of_a_copy(void **state)
{
    (void)state;
    assert_true(fingerprint_of(copy_path) == fingerprint_of(model_path));
}

/* The first and the last byte of 32 tensors count, and the tensors are of all kinds and depths: no
 * eighth of the table is left out. */
static void of_other_weights(void **state)
{
    (void)state;
    uint64_t original = fingerprint_of(model_path);
    moe_gguf *gguf = NULL;
    assert_int_equal(moe_gguf_open(&gguf, model_path, NULL), MOE_OK);
    size_t n = moe_gguf_n_tensors(gguf);
    size_t n_counting = 0;
    size_t in_eighth[8] = {0};
    assert_true(n > 32);
    for (size_t i = 0; i < n; i++) {
        const moe_gguf_tensor *tensor = moe_gguf_tensor_at(gguf, i);
        uint64_t ends[2] = {tensor->offset, tensor->offset + tensor->size - 1};
        bool counts[2];
        for (int end = 0; end < 2; end++) {
            flip(ends[end]);
            counts[end] = fingerprint_of(copy_path) != original;
            flip(ends[end]);
        }
        assert_true(counts[0] == counts[1]);
        n_counting += counts[0];
        in_eighth[i * 8 / n] += counts[0];
    }
    moe_gguf_close(&gguf);
    assert_int_equal(n_counting, 32);
    for (int i = 0; i < 8; i++) {
        assert_true(in_eighth[i] >= 2);
    }
    assert_true(fingerprint_of(copy_path) == original);
}

static void of_a_file_cut_while_open(void **state)
{
    (void)state;
    moe_gguf *gguf = NULL;
    moe_error error;
    uint64_t fingerprint;
    assert_int_equal(moe_gguf_open(&gguf, copy_path, NULL), MOE_OK);
    moe_model_reader_options reading = {.gguf = gguf};
    assert_int_equal(truncate(copy_path, (off_t)moe_gguf_tensor_at(gguf, 0)->offset + 1), 0);
    assert_int_equal(moe_model_fingerprint(&reading, &fingerprint, &error), MOE_ERR_IO);
    moe_gguf_close(&gguf);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: test_fingerprint MODEL.gguf\n");
        return 2;
    }
    model_path = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_a_copy),
        cmocka_unit_test(of_other_weights),
        cmocka_unit_test(of_a_file_cut_while_open),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
