/* SPDX-License-Identifier: MIT */
/* Models in parts: any part opens all, in order; missing and foreign parts are named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/dtype.h"
#include "runtime/model/gguf.h"
#include "tests/model/gguf_builder.h"

enum { N_PARTS = 3 };

static char folder[] = "/tmp/test_split.XXXXXX";

static void part_path(char path[4096], int part)
{
    snprintf(path, 4096, "%s/model-%05d-of-%05d.gguf", folder, part, N_PARTS);
}

/* What one part says of itself; the first has the model's metadata. */
static gguf_builder *part_builder(int number, int count, int n_tensors)
{
    char name[16];
    gguf_builder *b = gb_new();
    if (number == 0) {
        gb_string(b, "general.architecture", "olmoe");
    }
    gb_raw_kv(b, "split.no", 8, MOE_GGUF_U16, &(uint16_t){(uint16_t)number}, 2);
    gb_raw_kv(b, "split.count", 11, MOE_GGUF_U16, &(uint16_t){(uint16_t)count}, 2);
    gb_i32(b, "split.tensors.count", n_tensors);
    snprintf(name, sizeof name, "tensor.%d", number);
    gb_tensor(b, name, MOE_DTYPE_F32, 1, 64 + number);
    gb_tensor(b, number == 0 ? "head" : number == 1 ? "middle" : "tail", MOE_DTYPE_F32, 1, 8);
    return b;
}

static void write_part(int part, gguf_builder *b)
{
    char path[4096];
    part_path(path, part);
    assert_int_equal(gb_write(b, path), 0);
    gb_free(b);
}

static int write_parts(void **state)
{
    (void)state;
    for (int i = 0; i < N_PARTS; i++) {
        write_part(i + 1, part_builder(i, N_PARTS, 2 * N_PARTS));
    }
    return 0;
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) == NULL ? -1 : 0;
}

static int remove_folder(void **state)
{
    char path[4096];
    (void)state;
    for (int i = 0; i < N_PARTS; i++) {
        part_path(path, i + 1);
        unlink(path);
    }
    return rmdir(folder);
}

static void test_any_part_opens_all(void **state)
{
    char path[4096];
    (void)state;
    for (int named = 1; named <= N_PARTS; named++) {
        moe_gguf *gguf = NULL;
        moe_error err = {""};
        part_path(path, named);
        if (moe_gguf_open(&gguf, path, &err) != MOE_OK) {
            fail_msg("%s", err.message);
        }
        assert_int_equal(moe_gguf_n_files(gguf), N_PARTS);
        assert_int_equal(moe_gguf_n_tensors(gguf), 2 * N_PARTS);
        assert_non_null(moe_gguf_find(gguf, "general.architecture"));
        for (uint32_t i = 0; i < N_PARTS; i++) {
            char name[16];
            snprintf(name, sizeof name, "tensor.%u", i);
            const moe_gguf_tensor *tensor = moe_gguf_find_tensor(gguf, name);
            assert_ptr_equal(tensor, moe_gguf_tensor_at(gguf, 2 * i));
            assert_int_equal(tensor->file_index, i);
            assert_int_equal(tensor->dims[0], 64 + i);
            part_path(path, (int)i + 1);
            assert_string_equal(moe_gguf_file_at(gguf, i)->path, path);
            float first = 0;
            assert_int_equal(
                pread(moe_gguf_file_at(gguf, i)->source->fd, &first, 4, (off_t)tensor->offset), 4);
            assert_true(first != 0 && first > -0.125f && first < 0.125f);
        }
        moe_gguf_close(&gguf);
    }
}

/* Opening by the given part must fail so. */
static void expect_failure(int part, int status, const char *says)
{
    char path[4096];
    moe_gguf *gguf = NULL;
    moe_error err = {""};
    part_path(path, part);
    int got = moe_gguf_open(&gguf, path, &err);
    assert_null(gguf);
    if (got != status || strstr(err.message, says) == NULL) {
        fail_msg("status %d, \"%s\", not %d, \"%s\"", got, err.message, status, says);
    }
}

static void test_missing_part(void **state)
{
    char path[4096];
    (void)state;
    part_path(path, 2);
    unlink(path);
    expect_failure(1, MOE_ERR_IO, "model-00002-of-00003.gguf', part 2 of 3 of this split model");
    expect_failure(3, MOE_ERR_IO, "all parts must lie in one folder");
    write_parts(NULL);
}

static void test_foreign_parts(void **state)
{
    (void)state;
    write_part(2, part_builder(2, N_PARTS, 6)); /* a copy of the third, renamed */
    expect_failure(1, MOE_ERR_FORMAT, "by its name part 2 of 3");
    write_part(2, part_builder(1, 4, 6));
    expect_failure(1, MOE_ERR_FORMAT, "split.count");
    write_part(2, part_builder(1, N_PARTS, 6));
    write_part(1, part_builder(0, N_PARTS, 7));
    expect_failure(2, MOE_ERR_FORMAT, "'split.tensors.count' is 7");
    gguf_builder *b = part_builder(1, N_PARTS, 6);
    gb_tensor(b, "head", MOE_DTYPE_F32, 1, 8);
    write_part(2, b);
    write_part(1, part_builder(0, N_PARTS, 7));
    expect_failure(1, MOE_ERR_FORMAT, "tensor 'head' is listed twice");
    b = gb_new(); /* a model of its own */
    write_part(2, b);
    expect_failure(1, MOE_ERR_FORMAT, "by its name part 2 of 3");
    write_parts(NULL);
}

static void test_truncated_part(void **state)
{
    char path[4096];
    (void)state;
    part_path(path, 3);
    assert_int_equal(truncate(path, 200), 0);
    expect_failure(1, MOE_ERR_FORMAT, "model-00003-of-00003.gguf': ");
    write_parts(NULL);
}

static void test_damaged_split_keys(void **state)
{
    (void)state;
    write_part(1, part_builder(5, N_PARTS, 6));
    expect_failure(1, MOE_ERR_FORMAT, "split.no");
    gguf_builder *b = gb_new();
    gb_string(b, "split.count", "three");
    write_part(1, b);
    expect_failure(1, MOE_ERR_FORMAT, "'split.count' is not a non-negative integer");
    b = gb_new();
    gb_u64(b, "split.count", UINT64_MAX);
    write_part(1, b);
    expect_failure(1, MOE_ERR_FORMAT, "are damaged");
    write_parts(NULL);
}

static void test_renamed(void **state)
{
    char path[4096];
    char renamed[4096];
    moe_gguf *gguf = NULL;
    moe_error err = {""};
    (void)state;
    part_path(path, 1);
    snprintf(renamed, sizeof renamed, "%s/x.gguf", folder);
    assert_int_equal(rename(path, renamed), 0);
    assert_int_equal(moe_gguf_open(&gguf, renamed, &err), MOE_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "does not end in -00001-of-00003.gguf"));
    unlink(renamed);
    write_parts(NULL);
}

/* A model of one part may have the name of a part. */
static void test_single_part(void **state)
{
    char path[4096];
    moe_gguf *gguf = NULL;
    moe_error err = {""};
    (void)state;
    gguf_builder *b = gb_new();
    gb_u32(b, "split.count", 1);
    write_part(1, b);
    part_path(path, 1);
    assert_int_equal(moe_gguf_open(&gguf, path, &err), MOE_OK);
    assert_int_equal(moe_gguf_n_files(gguf), 1);
    moe_gguf_close(&gguf);
    write_parts(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_any_part_opens_all, write_parts),
        cmocka_unit_test(test_missing_part),
        cmocka_unit_test(test_foreign_parts),
        cmocka_unit_test(test_truncated_part),
        cmocka_unit_test(test_damaged_split_keys),
        cmocka_unit_test(test_renamed),
        cmocka_unit_test(test_single_part),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
