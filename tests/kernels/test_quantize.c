/* SPDX-License-Identifier: MIT */
/* Quantising rows: Q4_0 against the oracle's blocks, Q2_K and Q3_K by what the dequantisers make of
 * them. Argument 1: the oracle's folder. */
#include "cpu/kernels/matmul.h"
#include "cpu/kernels/quantize_blocks.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { ROW = 256, N_ROWS = 64, MOST_BYTES = 256 };

static const char *oracle_folder;
static const moe_dtype types[] = {MOE_DTYPE_Q4_0, MOE_DTYPE_Q3_K, MOE_DTYPE_Q2_K};
enum { N_TYPES = sizeof types / sizeof types[0] };

static void read_file(const char *name, void *data, size_t bytes)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", oracle_folder, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fread(data, 1, bytes, file), bytes);
    assert_int_equal(fgetc(file), EOF);
    fclose(file);
}

static float *oracle_values(void)
{
    float *x = malloc((size_t)N_ROWS * ROW * sizeof *x);
    assert_non_null(x);
    read_file("quantize.f32", x, (size_t)N_ROWS * ROW * sizeof *x);
    return x;
}

static void q4_0_is_the_oracles(void **state)
{
    (void)state;
    float *x = oracle_values();
    enum { BYTES = N_ROWS * ROW / 32 * 18 };
    static uint8_t expected[BYTES], out[BYTES];
    read_file("quantize.Q4_0.bin", expected, BYTES);
    moe_quantize_row(MOE_DTYPE_Q4_0, x, NULL, N_ROWS * ROW, out);
    for (size_t i = 0; i < BYTES; i++) {
        if (out[i] != expected[i]) {
            fail_msg("block %zu, byte %zu: %02x, not %02x", i / 18, i % 18, out[i], expected[i]);
        }
    }
    free(x);
}

/* Quantises a row into exactly its bytes, and returns the error that remains, as a share of the
 * row: sqrt(sum w (x - value)^2 / sum w x^2), with weights w or, if NULL, 1. */
static double error_of(moe_dtype type, const float *x, const float *importance, const float *w)
{
    moe_matmul_kernels kernels;
    moe_matmul_kernels_init(&kernels, 0);
    const size_t bytes = (size_t)moe_dtype_row_bytes(type, ROW);
    uint8_t blocks[MOST_BYTES];
    float values[ROW];
    assert_true(bytes + 8 <= sizeof blocks);
    memset(blocks, 0x5a, sizeof blocks);
    moe_quantize_row(type, x, importance, ROW, blocks);
    for (size_t i = 0; i < 8; i++) {
        assert_int_equal(blocks[bytes + i], 0x5a);
    }
    kernels.dequantize[type](blocks, values, ROW);
    double error = 0.0, all = 0.0;
    for (int i = 0; i < ROW; i++) {
        const double weight = w != NULL ? w[i] : 1.0;
        error += weight * (x[i] - values[i]) * (x[i] - values[i]);
        all += weight * x[i] * x[i];
    }
    return all > 0.0 ? sqrt(error / all) : error;
}

/* Numbers that are about normally distributed: sums of uniform ones. */
static float normal(uint64_t *seed)
{
    float sum = -6.0f;
    for (int i = 0; i < 12; i++) {
        *seed = *seed * 6364136223846793005u + 1442695040888963407u;
        sum += (float)(*seed >> 40) / (float)(1 << 24);
    }
    return sum;
}

static double mean_error(moe_dtype type, bool by_importance, float spread)
{
    uint64_t seed = 7;
    double sum = 0.0;
    enum { N = 200 };
    for (int k = 0; k < N; k++) {
        float x[ROW], w[ROW];
        for (int i = 0; i < ROW; i++) {
            x[i] = 0.02f * normal(&seed);
            w[i] = expf(spread * normal(&seed));
        }
        sum += error_of(type, x, by_importance ? w : NULL, w);
    }
    return sum / N;
}

/* Of normally distributed numbers: no more than ggml's quantisers leave of the same ones, which is
 * 0.0848 (Q4_0), 0.1434 and 0.2664 with importances that are all equal, 0.1498 and 0.2937 without
 * (measured with llama.cpp's library). */
static void errors_are_small(void **state)
{
    (void)state;
    const double most[N_TYPES] = {0.0849, 0.1434, 0.2664};
    for (int t = 0; t < N_TYPES; t++) {
        const double error = mean_error(types[t], false, 0.0f);
        assert_true(error < most[t]);
    }
}

/* What matters more is met more closely. */
static void importance_acts(void **state)
{
    (void)state;
    for (int t = 1; t < N_TYPES; t++) {
        assert_true(mean_error(types[t], true, 1.0f) < 0.93 * mean_error(types[t], false, 1.0f));
    }
}

static void odd_rows_are_met(void **state)
{
    (void)state;
    float *x = oracle_values();
    for (int t = 0; t < N_TYPES; t++) {
        assert_true(error_of(types[t], x, NULL, NULL) == 0.0);           /* zeros */
        assert_true(error_of(types[t], x + 2 * ROW, NULL, NULL) < 0.16); /* 1 and -1 */
        assert_true(error_of(types[t], x + 5 * ROW, NULL, NULL) < 2e-3); /* 0.25 throughout */
        assert_true(error_of(types[t], x + 7 * ROW, NULL, NULL) < 0.30); /* half of them 0 */
    }
    free(x);
}

/* Quantising what a block holds gives the block's values again, or nearly: the search finds the
 * scales. */
static void values_of_blocks_come_back(void **state)
{
    (void)state;
    moe_matmul_kernels kernels;
    moe_matmul_kernels_init(&kernels, 0);
    uint64_t seed = 11;
    for (int t = 0; t < N_TYPES; t++) {
        double worst = 0.0;
        for (int k = 0; k < 50; k++) {
            float x[ROW];
            uint8_t blocks[MOST_BYTES];
            for (int i = 0; i < ROW; i++) {
                x[i] = normal(&seed);
            }
            moe_quantize_row(types[t], x, NULL, ROW, blocks);
            kernels.dequantize[types[t]](blocks, x, ROW);
            const double error = error_of(types[t], x, NULL, NULL);
            worst = error > worst ? error : worst;
        }
        assert_true(worst < 0.06);
    }
}

static void other_types_are_refused(void **state)
{
    (void)state;
    for (uint32_t type = 0; type < MOE_DTYPE_LIMIT; type++) {
        const bool listed =
            type == MOE_DTYPE_Q4_0 || type == MOE_DTYPE_Q2_K || type == MOE_DTYPE_Q3_K;
        assert_int_equal(moe_can_quantize((moe_dtype)type), listed);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(q4_0_is_the_oracles),
        cmocka_unit_test(errors_are_small),
        cmocka_unit_test(importance_acts),
        cmocka_unit_test(odd_rows_are_met),
        cmocka_unit_test(values_of_blocks_come_back),
        cmocka_unit_test(other_types_are_refused),
    };
    if (argc < 2) {
        fprintf(stderr, "usage: test_quantize ORACLE_FOLDER\n");
        return 2;
    }
    oracle_folder = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
