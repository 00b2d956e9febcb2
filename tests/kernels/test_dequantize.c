/* SPDX-License-Identifier: MIT */
/* Every type's dequantiser against the oracle files (argument 1: their folder), bit by bit. */
#include "cpu/kernels/matmul.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* Elements of a row in the files of types whose rows begin with a scale. */
enum { SCALED_ROW = 1024 };

static const char *oracle_folder;

static void *read_file(const char *name, const char *suffix, size_t *bytes)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s.%s", oracle_folder, name, suffix);
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        fail_msg("cannot open %s", path);
    }
    fseek(file, 0, SEEK_END);
    *bytes = (size_t)ftell(file);
    rewind(file);
    void *data = malloc(*bytes);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, *bytes, file), *bytes);
    fclose(file);
    return data;
}

/* n elements in rows of row_elems each. */
static void check_rows(moe_dequantize_fn dequantize, moe_dtype type, const uint8_t *blocks,
                       const float *expected, uint32_t n, uint32_t row_elems)
{
    float *out = malloc((row_elems + 1) * sizeof *out);
    assert_non_null(out);
    const uint64_t head_bytes = moe_dtype_info_of(type)->head_bytes;
    for (uint32_t k = 0; k + row_elems <= n; k += row_elems) {
        memset(out, 0x77, (row_elems + 1) * sizeof *out);
        const float canary = out[row_elems];
        const uint64_t at = head_bytes > 0 ? k / row_elems * moe_dtype_row_bytes(type, row_elems)
                                           : moe_dtype_row_bytes(type, k);
        dequantize(blocks + at, out, row_elems);
        if (memcmp(out, expected + k, row_elems * sizeof *out) != 0) {
            uint32_t i = 0;
            while (memcmp(&out[i], &expected[k + i], sizeof *out) == 0) {
                i++;
            }
            fail_msg("%s: element %u is %a, not %a", moe_dtype_name(type), k + i, (double)out[i],
                     (double)expected[k + i]);
        }
        assert_memory_equal(&out[row_elems], &canary, sizeof canary);
    }
    free(out);
}

static void dequantizes_as_the_oracle(void **state)
{
    (void)state;
    moe_matmul_kernels kernels;
    moe_matmul_kernels_init(&kernels, 0);
    for (uint32_t type = MOE_DTYPE_F16; type < MOE_DTYPE_LIMIT; type++) {
        const moe_dtype_info *info = moe_dtype_info_of(type);
        if (info == NULL) {
            assert_null(kernels.dequantize[type]);
            assert_null(kernels.matmul[type]);
            continue;
        }
        size_t block_bytes, float_bytes;
        uint8_t *blocks = read_file(info->name, "bin", &block_bytes);
        float *expected = read_file(info->name, "f32", &float_bytes);
        const uint32_t n = (uint32_t)(float_bytes / sizeof *expected);
        const uint64_t n_heads = info->head_bytes > 0 ? n / SCALED_ROW : 0;
        assert_int_equal(n / info->block_elems * info->block_bytes + n_heads * info->head_bytes,
                         block_bytes);
        if (info->head_bytes > 0) {
            check_rows(kernels.dequantize[type], (moe_dtype)type, blocks, expected, n, SCALED_ROW);
            free(blocks);
            free(expected);
            continue;
        }
        const uint32_t sizes[] = {n, info->block_elems, 3 * info->block_elems,
                                  7 * info->block_elems, 9 * info->block_elems};
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            check_rows(kernels.dequantize[type], (moe_dtype)type, blocks, expected, n, sizes[i]);
        }
        free(blocks);
        free(expected);
    }
}

static void float32_is_copied(void **state)
{
    (void)state;
    moe_matmul_kernels kernels;
    moe_matmul_kernels_init(&kernels, 0);
    const float row[3] = {1.5f, -0.0f, 0x1p-149f};
    float out[3];
    kernels.dequantize[MOE_DTYPE_F32](row, out, 3);
    assert_memory_equal(out, row, sizeof row);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dequantizes_as_the_oracle),
        cmocka_unit_test(float32_is_copied),
    };
    if (argc < 2) {
        fprintf(stderr, "usage: test_dequantize ORACLE_FOLDER\n");
        return 2;
    }
    oracle_folder = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
