/* SPDX-License-Identifier: MIT */
/* The GGUF reader: what it reads of good files, and the error each bad one gives. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/dtype.h"
#include "tests/model/gguf_cases.h"

static char folder[] = "/tmp/test_gguf.XXXXXX";

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) == NULL ? -1 : 0;
}

static int remove_folder(void **state)
{
    (void)state;
    return rmdir(folder);
}

static void path_in_folder(char path[4096], const char *name)
{
    snprintf(path, 4096, "%s/%s", folder, name);
}

static void write_file(const char *path, const void *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

/* 1 when the case did not fail as it should. */
static int check_error(const gguf_case *c, const char *how, int status, const moe_error *err)
{
    if (status == c->status && strstr(err->message, c->says) != NULL) {
        return 0;
    }
    print_error("case '%s', %s: status %d, message \"%s\"\n", c->name, how, status, err->message);
    return 1;
}

static void test_malformed(void **state)
{
    char path[4096];
    (void)state;
    path_in_folder(path, "malformed.gguf");
    int n_wrong = 0;
    assert_true(n_gguf_cases >= 45);
    for (size_t i = 0; i < n_gguf_cases; i++) {
        const gguf_case *c = &gguf_cases[i];
        gguf_builder *b = gguf_case_base();
        moe_gguf *gguf = NULL;
        moe_error err = {""};
        size_t size;
        const uint8_t *bytes = gguf_case_make(c, b, &size);
        /* A copy of the exact size, so that a sanitizer sees a read beyond it. */
        uint8_t *exact = malloc(size);
        assert_non_null(exact);
        memcpy(exact, bytes, size);
        n_wrong += check_error(c, "in memory", moe_gguf_parse(&gguf, exact, size, &err), &err);
        assert_null(gguf);
        write_file(path, exact, size);
        n_wrong += check_error(c, "as a file", moe_gguf_open(&gguf, path, &err), &err);
        assert_null(gguf);
        assert_non_null(strstr(err.message, "malformed.gguf': "));
        assert_int_equal(moe_gguf_parse(&gguf, exact, size, NULL), c->status);
        free(exact);
        gb_free(b);
    }
    unlink(path);
    assert_int_equal(n_wrong, 0);
}

static void test_every_prefix_fails(void **state)
{
    (void)state;
    gguf_builder *b = gguf_case_base();
    size_t size;
    const uint8_t *bytes = gb_finish(b, &size);
    for (size_t cut = 0; cut < size; cut++) {
        uint8_t *exact = malloc(cut + 1);
        assert_non_null(exact);
        memcpy(exact, bytes, cut);
        moe_gguf *gguf = NULL;
        moe_error err = {""};
        assert_int_equal(moe_gguf_parse(&gguf, exact, cut, &err), MOE_ERR_FORMAT);
        assert_true(strlen(err.message) > 20);
        free(exact);
    }
    gb_free(b);
}

static void add_one_of_each(gguf_builder *b)
{
    gb_u8(b, "k.u8", 200);
    gb_i32(b, "k.i32", -7);
    gb_u32(b, "k.u32", 4000000000u);
    gb_u64(b, "k.u64", (uint64_t)1 << 40);
    gb_f32(b, "k.f32", 0.5f);
    gb_f64(b, "k.f64", 1e300);
    gb_bool(b, "k.bool", 1);
    gb_string(b, "k.string", "hello");
    gb_raw_kv(b, "k.i8", 4, MOE_GGUF_I8, "\xfe", 1);
    gb_raw_kv(b, "k.i16", 5, MOE_GGUF_I16, "\x00\x80", 2);
    gb_raw_kv(b, "k.u16", 5, MOE_GGUF_U16, "\x01\x80", 2);
    gb_raw_kv(b, "k.i64", 5, MOE_GGUF_I64, "\xff\xff\xff\xff\xff\xff\xff\xff", 8);
    gb_array_i32(b, "a.i32", (int32_t[]){1, -2, 3}, 3);
    gb_array_f32(b, "a.f32", (float[]){0.25f, -1.5f}, 2);
    gb_array_string(b, "a.string", (const char *[]){"ab", "", "cde"}, 3);
    gb_array_i32(b, "a.empty", NULL, 0);
}

static moe_gguf *parse(gguf_builder *b)
{
    moe_gguf *gguf = NULL;
    moe_error err = {""};
    size_t size;
    const uint8_t *bytes = gb_finish(b, &size);
    if (moe_gguf_parse(&gguf, bytes, size, &err) != MOE_OK) {
        fail_msg("%s", err.message);
    }
    return gguf;
}

static void test_values(void **state)
{
    (void)state;
    gguf_builder *b = gb_new();
    add_one_of_each(b);
    moe_gguf *gguf = parse(b);
    assert_int_equal(moe_gguf_n_kvs(gguf), 16);
    assert_int_equal(moe_gguf_find(gguf, "k.i8")->value.i64, -2);
    assert_int_equal(moe_gguf_find(gguf, "k.i16")->value.i64, -32768);
    assert_int_equal(moe_gguf_find(gguf, "k.u16")->value.u64, 32769);
    assert_int_equal(moe_gguf_find(gguf, "k.i64")->value.i64, -1);
    assert_int_equal(moe_gguf_find(gguf, "k.u64")->value.u64, (uint64_t)1 << 40);
    assert_true(moe_gguf_find(gguf, "k.f64")->value.f64 == 1e300);
    const moe_gguf_kv *strings = moe_gguf_find(gguf, "a.string");
    assert_int_equal(strings->n_elements, 3);
    assert_int_equal(strings->value.strings[1].size, 0);
    assert_memory_equal(strings->value.strings[2].data, "cde", 3);
    assert_int_equal(moe_gguf_find(gguf, "a.empty")->n_elements, 0);
    assert_null(moe_gguf_find(gguf, "k.u3"));
    assert_null(moe_gguf_find(gguf, ""));
    assert_ptr_equal(moe_gguf_kv_at(gguf, 0), moe_gguf_find(gguf, "k.u8"));
    assert_null(moe_gguf_kv_at(gguf, 16));
    assert_int_equal(moe_gguf_n_tensors(gguf), 0);
    assert_null(moe_gguf_find_tensor(gguf, "first"));
    moe_gguf_close(&gguf);
    assert_null(gguf);
    moe_gguf_close(&gguf);
    gb_free(b);
}

static void test_typed_reads(void **state)
{
    (void)state;
    gguf_builder *b = gb_new();
    add_one_of_each(b);
    moe_gguf *gguf = parse(b);
    moe_error err;
    uint32_t u = 17;
    float f = 1.25f;
    bool flag = false;
    moe_string_view text = {0};
    assert_int_equal(moe_gguf_get_u32(gguf, "absent", &u, &err), MOE_OK);
    assert_int_equal(u, 17);
    assert_int_equal(moe_gguf_get_u32(gguf, "k.u32", &u, &err), MOE_OK);
    assert_int_equal(u, 4000000000u);
    assert_int_equal(moe_gguf_get_u32(gguf, "k.u8", &u, &err), MOE_OK);
    assert_int_equal(u, 200);
    assert_int_equal(moe_gguf_get_u32(gguf, "k.bool", &u, &err), MOE_OK);
    assert_int_equal(u, 1);
    assert_int_equal(moe_gguf_get_u32(gguf, "k.i32", &u, &err), MOE_ERR_FORMAT);
    assert_non_null(strstr(err.message, "'k.i32' is negative (-7)"));
    assert_int_equal(moe_gguf_get_u32(gguf, "k.u64", &u, &err), MOE_ERR_FORMAT);
    assert_int_equal(moe_gguf_get_u32(gguf, "k.f32", &u, &err), MOE_ERR_FORMAT);
    assert_int_equal(moe_gguf_get_u32(gguf, "a.i32", &u, &err), MOE_ERR_FORMAT);
    assert_non_null(strstr(err.message, "'a.i32' is an array, not an integer"));
    assert_int_equal(u, 1);
    assert_int_equal(moe_gguf_get_f32(gguf, "k.f32", &f, &err), MOE_OK);
    assert_true(f == 0.5f);
    assert_int_equal(moe_gguf_get_f32(gguf, "k.i32", &f, &err), MOE_OK);
    assert_true(f == -7.0f);
    assert_int_equal(moe_gguf_get_f32(gguf, "k.f64", &f, &err), MOE_ERR_FORMAT);
    assert_int_equal(moe_gguf_get_f32(gguf, "k.string", &f, &err), MOE_ERR_FORMAT);
    assert_int_equal(moe_gguf_get_bool(gguf, "k.bool", &flag, &err), MOE_OK);
    assert_true(flag);
    assert_int_equal(moe_gguf_get_bool(gguf, "k.u8", &flag, &err), MOE_ERR_FORMAT);
    assert_int_equal(moe_gguf_get_string(gguf, "k.string", &text, &err), MOE_OK);
    assert_int_equal(text.size, 5);
    assert_memory_equal(text.data, "hello", 5);
    assert_int_equal(moe_gguf_get_string(gguf, "k.u8", &text, &err), MOE_ERR_FORMAT);
    moe_gguf_close(&gguf);
    gb_free(b);
}

static void test_array_elements(void **state)
{
    (void)state;
    gguf_builder *b = gb_new();
    add_one_of_each(b);
    moe_gguf *gguf = parse(b);
    const moe_gguf_kv *ints = moe_gguf_find(gguf, "a.i32");
    const moe_gguf_kv *floats = moe_gguf_find(gguf, "a.f32");
    int64_t i = 0;
    float f = 0;
    assert_int_equal(moe_gguf_array_i64(ints, 1, &i), MOE_OK);
    assert_int_equal(i, -2);
    assert_int_equal(moe_gguf_array_f32(ints, 2, &f), MOE_OK);
    assert_true(f == 3.0f);
    assert_int_equal(moe_gguf_array_i64(ints, 3, &i), MOE_ERR_ARGUMENT);
    assert_int_equal(moe_gguf_array_f32(floats, 1, &f), MOE_OK);
    assert_true(f == -1.5f);
    assert_int_equal(moe_gguf_array_i64(floats, 0, &i), MOE_ERR_FORMAT);
    assert_int_equal(moe_gguf_array_i64(moe_gguf_find(gguf, "a.string"), 0, &i), MOE_ERR_FORMAT);
    assert_int_equal(moe_gguf_array_i64(moe_gguf_find(gguf, "a.empty"), 0, &i), MOE_ERR_ARGUMENT);
    assert_int_equal(moe_gguf_array_i64(moe_gguf_find(gguf, "k.i32"), 0, &i), MOE_OK);
    assert_int_equal(i, -7);
    assert_int_equal(moe_gguf_array_i64(moe_gguf_find(gguf, "k.i32"), 1, &i), MOE_ERR_ARGUMENT);
    moe_gguf_close(&gguf);
    gb_free(b);
}

static void test_tensors(void **state)
{
    char path[4096];
    (void)state;
    path_in_folder(path, "good.gguf");
    gguf_builder *b = gguf_case_base();
    gb_tensor(b, "blocks", MOE_DTYPE_Q4_K, 3, 256, 3, 2);
    gb_raw_tensor(b, &(gb_entry){"later", 1, {77}, 999, 1280});
    gb_set_version(b, 2);
    gb_u32(b, "general.alignment", 64);
    gb_set_alignment(b, 64);
    assert_int_equal(gb_write(b, path), 0);
    moe_gguf *gguf = NULL;
    moe_error err = {""};
    if (moe_gguf_open(&gguf, path, &err) != MOE_OK) {
        fail_msg("%s", err.message);
    }
    size_t size;
    gb_finish(b, &size);
    assert_int_equal(moe_gguf_version(gguf), 2);
    assert_int_equal(moe_gguf_n_files(gguf), 1);
    assert_int_equal(moe_gguf_file_at(gguf, 0)->size, size);
    assert_string_equal(moe_gguf_file_at(gguf, 0)->path, path);
    assert_null(moe_gguf_file_at(gguf, 1));
    assert_int_equal(moe_gguf_n_tensors(gguf), 4);
    const moe_gguf_tensor *blocks = moe_gguf_find_tensor(gguf, "blocks");
    assert_ptr_equal(blocks, moe_gguf_tensor_at(gguf, 2));
    assert_int_equal(blocks->size, 6 * 144);
    assert_int_equal(blocks->dims[1], 3);
    assert_int_equal(blocks->dims[3], 1);
    assert_int_equal(blocks->offset % 64, 0);
    assert_int_equal(moe_gguf_find_tensor(gguf, "later")->size, 0);
    /* The bytes at the offset are the tensor's: the builder's floats are below 0.125. */
    float first;
    assert_int_equal(pread(moe_gguf_file_at(gguf, 0)->source->fd, &first, 4,
                           (off_t)moe_gguf_find_tensor(gguf, "first")->offset),
                     4);
    assert_true(first != 0 && first > -0.125f && first < 0.125f);
    moe_gguf_close(&gguf);
    gb_free(b);
    unlink(path);
}

static void test_not_files(void **state)
{
    char path[4096];
    moe_gguf *gguf = NULL;
    moe_error err = {""};
    (void)state;
    assert_int_equal(moe_gguf_open(&gguf, folder, &err), MOE_ERR_IO);
    assert_non_null(strstr(err.message, "is a directory"));
    path_in_folder(path, "absent.gguf");
    assert_int_equal(moe_gguf_open(&gguf, path, &err), MOE_ERR_IO);
    assert_non_null(strstr(err.message, "absent.gguf': cannot open: No such file"));
    path_in_folder(path, "pipe.gguf");
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(moe_gguf_open(&gguf, path, &err), MOE_ERR_IO);
    assert_non_null(strstr(err.message, "not a file"));
    unlink(path);
    path_in_folder(path, "empty.gguf");
    write_file(path, "", 0);
    assert_int_equal(moe_gguf_open(&gguf, path, &err), MOE_ERR_FORMAT);
    unlink(path);
    assert_null(gguf);
}

/* A header longer than the first read, and a sparse file that claims a header of gigabytes. */
static void test_long_headers(void **state)
{
    char path[4096];
    (void)state;
    path_in_folder(path, "long.gguf");
    gguf_builder *b = gguf_case_base();
    gb_array_tokens(b, "tokenizer.ggml.tokens", 400000);
    assert_int_equal(gb_write(b, path), 0);
    moe_gguf *gguf = NULL;
    moe_error err = {""};
    if (moe_gguf_open(&gguf, path, &err) != MOE_OK) {
        fail_msg("%s", err.message);
    }
    const moe_gguf_kv *tokens = moe_gguf_find(gguf, "tokenizer.ggml.tokens");
    assert_int_equal(tokens->n_elements, 400000);
    assert_memory_equal(tokens->value.strings[399999].data, "t399999", 7);
    moe_gguf_close(&gguf);
    gb_free(b);

    b = gguf_case_base();
    uint64_t length = (uint64_t)1 << 33;
    gb_raw_kv(b, "made.up", 7, MOE_GGUF_STRING, &length, 8);
    assert_int_equal(gb_write(b, path), 0);
    assert_int_equal(truncate(path, (off_t)1 << 35), 0);
    assert_int_equal(moe_gguf_open(&gguf, path, &err), MOE_ERR_FORMAT);
    assert_non_null(strstr(err.message, "which no model's is"));
    gb_free(b);
    unlink(path);
}

/* Takes minutes if any look-up or check is quadratic. */
static void test_many_entries(void **state)
{
    enum { N = 60000 };
    (void)state;
    gguf_builder *b = gb_new();
    gb_array_tokens(b, "tokens", 1000000);
    for (int i = 0; i < N; i++) {
        char name[32];
        snprintf(name, sizeof name, "key.%d", i);
        gb_u32(b, name, (uint32_t)i);
        gb_tensor(b, name, MOE_DTYPE_F32, 1, 1);
    }
    moe_gguf *gguf = parse(b);
    for (int i = 0; i < N; i++) {
        char name[32];
        uint32_t value = 0;
        snprintf(name, sizeof name, "key.%d", i);
        assert_int_equal(moe_gguf_get_u32(gguf, name, &value, NULL), MOE_OK);
        assert_int_equal(value, i);
        assert_ptr_equal(moe_gguf_find_tensor(gguf, name), moe_gguf_tensor_at(gguf, (size_t)i));
    }
    moe_gguf_close(&gguf);
    gb_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_malformed),      cmocka_unit_test(test_every_prefix_fails),
        cmocka_unit_test(test_values),         cmocka_unit_test(test_typed_reads),
        cmocka_unit_test(test_array_elements), cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_not_files),      cmocka_unit_test(test_long_headers),
        cmocka_unit_test(test_many_entries),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
