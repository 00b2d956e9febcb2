/* SPDX-License-Identifier: MIT */
/* Weight products and activation quantisation: the reference against arithmetic in double, every
 * faster kernel against the reference, bit by bit. `--bench [TYPE]` measures instead. */
#include "matmul_cases.h"

#include "cpu/kernels/cpu_features.h"
#include "runtime/base/alloc.h"
#include "tests/test_size.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { MAX_ROWS = 101, MAX_OUT = 37, X_ROWS = 40, CANARY = 3 };

/* One weight matrix with activations and the reference's products of all of them. */
typedef struct matmul_case {
    moe_dtype type;
    uint32_t n_in;
    size_t row_bytes;
    uint8_t *weights; /* [MAX_OUT] */
    guarded x;        /* float [X_ROWS][n_in] */
    moe_q8_rows x_q8;
    void *scratch;
    void *tile_scratch;
    float *expected; /* [X_ROWS][MAX_OUT] */
} matmul_case;

static matmul_case case_new(moe_dtype type, uint32_t n_in, uint64_t *random)
{
    matmul_case c = {.type = type, .n_in = n_in};
    moe_matmul_kernels reference;
    moe_matmul_kernels_init(&reference, 0);
    c.row_bytes = moe_dtype_row_bytes(type, n_in);
    c.weights = malloc(MAX_OUT * c.row_bytes);
    c.expected = malloc(X_ROWS * MAX_OUT * sizeof *c.expected);
    c.tile_scratch = moe_calloc_aligned(MOE_TILE_SCRATCH_BYTES, 1);
    assert_true(c.weights != NULL && c.expected != NULL && c.tile_scratch != NULL);
    memset(c.tile_scratch, 0xff, MOE_TILE_SCRATCH_BYTES); /* NaNs: nobody may count on zeros */
    random_rows(type, c.weights, MAX_OUT, n_in, random);
    c.x = guarded_new(X_ROWS * (size_t)n_in * sizeof(float));
    float *x = (float *)c.x.data;
    for (size_t i = 0; i < X_ROWS * (size_t)n_in; i++) {
        x[i] = random_normal(random);
    }
    if (!moe_dtype_info_of(type)->is_float) {
        c.x_q8 = q8_rows_new(X_ROWS, n_in, &c.scratch);
        reference.quantize_rows(x, n_in, X_ROWS, n_in, &c.x_q8, 0);
    }
    const moe_matmul_args args = {.type = type,
                                  .weights = c.weights,
                                  .row_bytes = c.row_bytes,
                                  .n_in = n_in,
                                  .n_out = MAX_OUT,
                                  .n_rows = X_ROWS,
                                  .x_q8 = &c.x_q8,
                                  .x = x,
                                  .x_stride = n_in,
                                  .out = c.expected,
                                  .out_stride = MAX_OUT};
    reference.matmul[type](&args);
    return c;
}

static void case_free(matmul_case *c)
{
    guarded_free(&c->x);
    free(c->scratch);
    free(c->tile_scratch);
    free(c->weights);
    free(c->expected);
}

/* Runs a kernel on weights and to outputs that end at an inaccessible page. With `indexed`,
 * activation and output rows go through lists; rows that no list names must stay as they were. */
static void check_shape(const matmul_case *c, const moe_matmul_kernels *kernels, const char *level,
                        uint32_t n_rows, uint32_t n_out, bool indexed)
{
    const size_t weight_bytes = n_out * c->row_bytes;
    guarded weights = guarded_new(weight_bytes);
    memcpy(weights.data, c->weights, weight_bytes);
    uint32_t x_index[MAX_ROWS], out_index[MAX_ROWS];
    for (uint32_t r = 0; r < n_rows; r++) {
        x_index[r] = (r * 7 + 3) % X_ROWS;
        out_index[r] = (n_rows - 1 - r) * 2 % MAX_ROWS; /* distinct: MAX_ROWS is odd */
    }
    const size_t stride = n_out + CANARY;
    const size_t n_floats = (indexed ? MAX_ROWS : n_rows) * stride - CANARY;
    guarded out_memory = guarded_new(n_floats * sizeof(float));
    float *out = (float *)(void *)out_memory.data;
    memset(out, 0x77, n_floats * sizeof *out);
    const moe_matmul_args args = {.type = c->type,
                                  .weights = weights.data,
                                  .row_bytes = c->row_bytes,
                                  .n_in = c->n_in,
                                  .n_out = n_out,
                                  .n_rows = n_rows,
                                  .x_q8 = &c->x_q8,
                                  .x = (const float *)c->x.data,
                                  .x_stride = c->n_in,
                                  .x_index = indexed ? x_index : NULL,
                                  .out_index = indexed ? out_index : NULL,
                                  .out = out,
                                  .out_stride = stride};
    moe_matmul_run(kernels, &args, c->tile_scratch);
    bool written[MAX_ROWS] = {false};
    for (uint32_t r = 0; r < n_rows; r++) {
        const float *row = out + (indexed ? out_index[r] : r) * stride;
        const float *expected = c->expected + (indexed ? x_index[r] : r) * MAX_OUT;
        written[indexed ? out_index[r] : r] = true;
        for (uint32_t o = 0; o < n_out; o++) {
            if (memcmp(&row[o], &expected[o], sizeof row[o]) != 0) {
                fail_msg("%s %s: n_in %u, rows %u, out %u: row %u output %u is %a, not %a", level,
                         moe_dtype_name(c->type), c->n_in, n_rows, n_out, r, o, (double)row[o],
                         (double)expected[o]);
            }
        }
    }
    for (size_t i = 0; i < n_floats; i++) {
        const bool mine = i % stride < n_out && written[i / stride];
        if (!mine && memcmp(&out[i], "wwww", 4) != 0) {
            fail_msg("%s %s: wrote outside its rows", level, moe_dtype_name(c->type));
        }
    }
    guarded_free(&out_memory);
    guarded_free(&weights);
}

static void check_case(const matmul_case *c, const moe_matmul_kernels *kernels, const char *level)
{
    static const uint32_t rows[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 33};
    static const uint32_t outs[] = {1,  2,  3,  4,  5,  7,  8,  9,      13,
                                    15, 16, 17, 21, 31, 32, 33, MAX_OUT};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        for (size_t o = 0; o < sizeof outs / sizeof outs[0]; o++) {
            if (!test_leaves_out((uint32_t)(i + o), 3)) {
                check_shape(c, kernels, level, rows[i], outs[o], (rows[i] + outs[o]) % 2 != 0);
            }
        }
    }
    check_shape(c, kernels, level, MAX_ROWS, MAX_OUT, true); /* more than share unpacked weights */
}

static bool same_products(const moe_matmul_kernels *a, const moe_matmul_kernels *b, moe_dtype type)
{
    return a->matmul[type] == b->matmul[type] &&
           (a->unpack_tiles[type] == NULL || a->tile_products == b->tile_products);
}

static void every_level_equals_the_reference(void **state)
{
    (void)state;
    /* Half chunks, incomplete groups of 256 and several blocks of the kernels' inner tiling. */
    static const uint32_t blocks32[] = {32, 64, 96, 160, 256, 288, 480, 544, 1056, 2080, 4352};
    static const uint32_t blocks256[] = {256, 512, 768, 1024, 2304, 4352};
    static const uint32_t floats[] = {1, 15, 16, 17, 31, 64, 100, 256, 1056, 2079, 4352};
    isa_level levels[MAX_ISA_LEVELS];
    const size_t n_levels = isa_levels(levels);
    uint64_t random = 1;
    for (uint32_t type = 0; type < MOE_DTYPE_LIMIT; type++) {
        const moe_dtype_info *info = moe_dtype_info_of(type);
        if (info == NULL) {
            continue;
        }
        const bool large = info->block_elems == 256;
        const uint32_t *sizes = info->is_float ? floats : large ? blocks256 : blocks32;
        const size_t n_sizes = (large ? sizeof blocks256 : sizeof blocks32) / sizeof sizes[0];
        for (size_t i = 0; i < n_sizes; i++) {
            if (sizes[i] % info->block_elems != 0) {
                continue;
            }
            matmul_case c = case_new((moe_dtype)type, sizes[i], &random);
            moe_matmul_kernels last = {0};
            for (size_t l = 0; l < n_levels; l++) {
                moe_matmul_kernels kernels;
                moe_matmul_kernels_init(&kernels, levels[l].features);
                memset(kernels.min_tile_fill, 0, sizeof kernels.min_tile_fill);
                if (!same_products(&kernels, &last, (moe_dtype)type) && (l > 0 || i < 3)) {
                    check_case(&c, &kernels, levels[l].name);
                }
                last = kernels;
            }
            case_free(&c);
        }
    }
}

/* The matrix unit's kernels, compiled with an emulation of its instructions. */
moe_tile_products_fn moe_tile_products_emulated;

static void check_emulated(moe_dtype type, uint32_t n_in, const moe_matmul_kernels *kernels,
                           uint64_t *random)
{
    static const uint32_t rows[] = {1, 15, 17, 40};
    matmul_case c = case_new(type, n_in, random);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check_shape(&c, kernels, "amx emulated", rows[i], i % 2 != 0 ? 16 : 17, i % 2 != 0);
    }
    case_free(&c);
}

/* Unpacking takes AVX-512 in any case. */
static void emulated_tiles_equal_the_reference(void **state)
{
    (void)state;
    const unsigned needed = MOE_CPU_AVX2 | MOE_CPU_AVX512 | MOE_CPU_AVX512_VNNI;
    const unsigned have = moe_cpu_features();
    print_message("matrix unit: its kernels run emulated%s\n",
                  (have & MOE_CPU_AMX_INT8) != 0 ? ", and on the processor's own above"
                                                 : " only; this processor has none");
    if ((have & needed) != needed) {
        print_message("and not at all: there is no AVX-512 VNNI\n");
        skip();
    }
    moe_matmul_kernels kernels;
    moe_matmul_kernels_init(&kernels, have & ~(unsigned)MOE_CPU_AMX_INT8);
    kernels.tile_products = moe_tile_products_emulated;
    uint64_t random = 6;
    for (uint32_t type = 0; type < MOE_DTYPE_LIMIT; type++) {
        if (kernels.unpack_tiles[type] != NULL && !test_leaves_out(type, 3)) {
            const bool large = moe_dtype_info_of(type)->block_elems == 256;
            check_emulated((moe_dtype)type, large ? 256 : 192, &kernels, &random);
            check_emulated((moe_dtype)type, 2304, &kernels, &random);
        }
    }
}

/* Exactly: codes and scales as they are, sums in double. */
static double product_in_double(const float *w, const int8_t *q, const float *d, uint32_t n,
                                double *magnitude)
{
    double sum = 0;
    *magnitude = 0;
    for (uint32_t i = 0; i < n; i++) {
        const double term = (double)w[i] * q[i] * (double)d[i / 32];
        sum += term;
        *magnitude += fabs(term);
    }
    return sum;
}

static void reference_equals_double_arithmetic(void **state)
{
    (void)state;
    enum { N = 768 };
    moe_matmul_kernels kernels;
    moe_matmul_kernels_init(&kernels, 0);
    uint64_t random = 2;
    float w[N];
    for (uint32_t type = 0; type < MOE_DTYPE_LIMIT; type++) {
        if (moe_dtype_info_of(type) == NULL) {
            continue;
        }
        const bool is_float = moe_dtype_info_of(type)->is_float;
        matmul_case c = case_new((moe_dtype)type, N, &random);
        const float *x = (const float *)c.x.data;
        for (size_t o = 0; o < MAX_OUT; o++) {
            kernels.dequantize[type](c.weights + o * c.row_bytes, w, N);
            for (size_t r = 0; r < X_ROWS; r++) {
                double exact = 0, magnitude = 0, rounding = 0;
                for (uint32_t i = 0; i < N; i++) {
                    exact += (double)w[i] * (double)x[r * N + i];
                    magnitude += fabs((double)w[i] * (double)x[r * N + i]);
                    rounding += is_float ? 0 : fabs(w[i]) * 0.5001 * c.x_q8.d[r * N / 32 + i / 32];
                }
                const double got = c.expected[r * MAX_OUT + o];
                /* 8-bit activations are off by at most half a step each. */
                assert_true(fabs(got - exact) <= rounding + 1e-5 * magnitude);
                if (!is_float) {
                    exact = product_in_double(w, c.x_q8.q + r * N, c.x_q8.d + r * N / 32, N,
                                              &magnitude);
                    assert_true(fabs(got - exact) <= 1e-5 * magnitude);
                }
            }
        }
        case_free(&c);
    }
}

/* Rows of every magnitude, with blocks of zeros, ties and values whose reciprocal overflows. */
static void fill_awkward_rows(float *x, uint32_t n_rows, uint32_t n, uint64_t *random)
{
    static const float magnitudes[] = {1,         0,         0x1p126f, 0x1p-100f, 0x1p-127f,
                                       0x1p-140f, 0x1p-149f, 0x1p60f,  3e-37f,    4e-37f};
    const size_t n_magnitudes = sizeof magnitudes / sizeof magnitudes[0];
    for (size_t i = 0; i < (size_t)n_rows * n; i++) {
        x[i] = random_normal(random) * 0.5f * magnitudes[i / 32 % n_magnitudes];
    }
    for (uint32_t i = 0; i < 32; i++) { /* amax 127 makes x * id = x: halves are ties */
        x[i] = i == 0 ? 127 : (float)i * (i % 2 != 0 ? 1 : -1) - 0.5f;
        x[n + i] = -0.0f;
        x[2 * n + i] = i % 2 != 0 ? 3.4028235e38f : -3.4028235e38f;
    }
}

static void check_quantized_block(const float *x, const moe_q8_rows *rows, size_t row, size_t b)
{
    const int8_t *q = rows->q + row * rows->n_in_padded + 32 * b;
    const size_t at = row * (rows->n_in_padded / 32) + b;
    float amax = 0;
    int32_t sum16[2] = {0, 0};
    for (int i = 0; i < 32; i++) {
        amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
        sum16[i / 16] += q[i];
    }
    const float inverse = amax > 0 && isfinite(127 / amax) ? 127 / amax : 0;
    assert_true(rows->d[at] == amax / 127);
    for (int i = 0; i < 32; i++) {
        assert_int_equal(q[i], lrintf(x[i] * inverse));
    }
    assert_int_equal(rows->sum16[2 * at], sum16[0]);
    assert_int_equal(rows->sum16[2 * at + 1], sum16[1]);
    assert_int_equal(rows->sum32[at], sum16[0] + sum16[1]);
    assert_true(rows->dsum16[2 * at] == rows->d[at] * (float)sum16[0]);
    assert_true(rows->dsum16[2 * at + 1] == rows->d[at] * (float)sum16[1]);
    assert_true(rows->dsum32[at] == rows->d[at] * (float)(sum16[0] + sum16[1]));
}

/* Quantises rows 1..n_rows, leaving rows 0 and n_rows + 1 alone, which must stay as they were. */
static void quantize_inside(moe_quantize_rows_fn quantize, const float *x, uint32_t n_rows,
                            uint32_t n, moe_q8_rows *rows, void **scratch)
{
    *rows = q8_rows_new(n_rows + 2, n, scratch);
    quantize(x, n, n_rows, n, rows, 1);
    for (uint32_t r = 0; r <= n_rows + 1; r += n_rows + 1) {
        for (uint32_t i = 0; i < rows->n_in_padded; i++) {
            assert_int_equal(rows->q[r * rows->n_in_padded + i], 0x5a);
        }
        for (uint32_t b = 0; b < rows->n_in_padded / 32; b++) {
            assert_memory_equal(&rows->d[r * (rows->n_in_padded / 32) + b], "ZZZZ", 4);
            assert_memory_equal(&rows->dsum32[r * (rows->n_in_padded / 32) + b], "ZZZZ", 4);
        }
    }
}

static void quantize_rows_is_exact_on_every_level(void **state)
{
    (void)state;
    enum { ROWS = 5 };
    static const uint32_t sizes[] = {32, 64, 96, 224, 256, 320, 1056};
    isa_level levels[MAX_ISA_LEVELS];
    const size_t n_levels = isa_levels(levels);
    uint64_t random = 3;
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        const uint32_t n = sizes[s];
        guarded memory = guarded_new((size_t)ROWS * n * sizeof(float));
        float *x = (float *)memory.data;
        fill_awkward_rows(x, ROWS, n, &random);
        moe_q8_rows expected;
        void *expected_scratch = NULL;
        for (size_t l = 0; l < n_levels; l++) {
            moe_matmul_kernels kernels;
            moe_q8_rows rows;
            void *scratch;
            moe_matmul_kernels_init(&kernels, levels[l].features);
            quantize_inside(kernels.quantize_rows, x, ROWS, n, &rows, &scratch);
            if (l > 0) {
                assert_memory_equal(scratch, expected_scratch, moe_q8_rows_bytes(ROWS + 2, n));
                free(scratch);
                continue;
            }
            expected = rows;
            expected_scratch = scratch;
            for (size_t i = 0; i < (size_t)ROWS * n / 32; i++) {
                check_quantized_block(x + 32 * i, &rows, 1 + i / (n / 32), i % (n / 32));
            }
            for (uint32_t i = n; i < rows.n_in_padded; i++) {
                assert_int_equal(rows.q[rows.n_in_padded + i], 0);
                assert_true(rows.d[(rows.n_in_padded + i) / 32] == 0);
                assert_int_equal(rows.sum16[(rows.n_in_padded + i) / 16], 0);
                assert_int_equal(rows.sum32[(rows.n_in_padded + i) / 32], 0);
            }
        }
        (void)expected;
        free(expected_scratch);
        guarded_free(&memory);
    }
}

static void empty_products_are_zero(void **state)
{
    (void)state;
    isa_level levels[MAX_ISA_LEVELS];
    const size_t n_levels = isa_levels(levels);
    void *scratch;
    moe_q8_rows rows = q8_rows_new(1, 0, &scratch);
    for (size_t l = 0; l < n_levels; l++) {
        moe_matmul_kernels kernels;
        moe_matmul_kernels_init(&kernels, levels[l].features);
        for (uint32_t type = 0; type < MOE_DTYPE_LIMIT; type++) {
            float out[2] = {7, 7};
            const moe_matmul_args args = {.type = (moe_dtype)type,
                                          .weights = out,
                                          .n_out = 1,
                                          .n_rows = 1,
                                          .x_q8 = &rows,
                                          .x = out,
                                          .out = out,
                                          .out_stride = 1};
            if (kernels.matmul[type] != NULL) {
                kernels.matmul[type](&args);
                assert_true(out[0] == 0 && out[1] == 7);
            }
        }
    }
    free(scratch);
}

static void features_chosen_and_described(void **state)
{
    (void)state;
    char text[100];
    assert_int_equal(moe_cpu_features_of(MOE_KERNELS_REFERENCE), 0);
    moe_cpu_features_describe(0, text, sizeof text);
    assert_string_equal(text, "reference C");
    assert_int_equal(moe_cpu_features_of(MOE_KERNELS_NATIVE), moe_cpu_features());
    assert_int_equal(moe_cpu_features_of(MOE_KERNELS_AVX2) & ~(unsigned)MOE_CPU_AVX2, 0);
    assert_int_equal(moe_cpu_features_of(MOE_KERNELS_AVX512) & ~moe_cpu_features(), 0);
    moe_cpu_features_describe(MOE_CPU_AVX2 | MOE_CPU_AVX512, text, sizeof text);
    assert_string_equal(text, "AVX2 AVX-512");
    assert_int_equal(moe_cpu_features_of(MOE_KERNELS_AVX512) & MOE_CPU_AMX_INT8, 0);
    moe_cpu_features_describe(MOE_CPU_AVX2 | MOE_CPU_AMX_INT8, text, sizeof text);
    assert_string_equal(text, "AVX2 AMX-INT8");
    moe_cpu_features_describe(MOE_CPU_AVX2 | MOE_CPU_AVX512, text, 4);
    assert_string_equal(text, "AVX");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(features_chosen_and_described),
        cmocka_unit_test(quantize_rows_is_exact_on_every_level),
        cmocka_unit_test(reference_equals_double_arithmetic),
        cmocka_unit_test(empty_products_are_zero),
        cmocka_unit_test(every_level_equals_the_reference),
        cmocka_unit_test(emulated_tiles_equal_the_reference),
    };
    if (argc > 1 && strcmp(argv[1], "--bench") == 0) {
        return matmul_bench(argc > 2 ? argv[2] : NULL);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
