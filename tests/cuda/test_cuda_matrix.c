/* SPDX-License-Identifier: MIT */
/* Products of many activation rows by the matrix units, under the emulation, against the reference
 * of cpu/kernels bit by bit: all tiles, every quantised type, rows and outputs beside the tiles'
 * sizes, rows that end within a group. Weights end at an inaccessible page; activations have zero,
 * tiny, huge and subnormal blocks. */
#include "cuda/kernels/product_launch.h"
#include "product_cases.h"

#include "cpu/kernels/matmul.h"
#include "tests/test_size.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { MAX_ROWS = 101, X_ROWS = 103, MAX_OUT = 131, CANARY = 3 };

typedef struct shape {
    uint32_t n_rows;
    uint32_t n_out;
    uint32_t slack; /* bytes between the weights' end and the inaccessible page */
    bool indexed;   /* rows through lists; rows that no list names must stay as they were */
    uint32_t matrix_from;
    uint32_t wide_from;
    uint32_t wide_rest;
    uint32_t narrow_upto;
} shape;

/* Tiles of 16, of 32, of 64, and of 64 with smaller ones for what is left over. */
enum { N_TILINGS = 4 };
static shape tiled(shape s, uint32_t tiling)
{
    s.wide_from = tiling >= 2 ? 1 : MOE_CUDA_NEVER;
    s.wide_rest = tiling == 2 ? 1 : 33;
    s.narrow_upto = tiling == 0 ? MOE_CUDA_NEVER : tiling == 1 ? 1 : 16;
    return s;
}

static void check_shape(const product_case *c, shape s)
{
    guarded weights = guarded_new(s.n_out * c->row_bytes + s.slack);
    memcpy(weights.data, c->weights, s.n_out * c->row_bytes);
    uint32_t x_index[MAX_ROWS], out_index[MAX_ROWS];
    float bias[MAX_OUT];
    const size_t stride = s.n_out + CANARY;
    float *out = memory_of(MAX_ROWS * stride * sizeof *out);
    float *expected = memory_of(MAX_ROWS * stride * sizeof *out);
    for (uint32_t i = 0; i < s.n_out; i++)
        bias[i] = (float)i * 0.37f - 11.0f;
    for (uint32_t r = 0; r < s.n_rows; r++) {
        x_index[r] = (r * 7 + 3) % X_ROWS;
        out_index[r] = (s.n_rows - 1 - r) * 2 % MAX_ROWS; /* distinct: 101 is odd */
        const float *from = c->expected + (size_t)(s.indexed ? x_index[r] : r) * c->n_out;
        float *to = expected + (s.indexed ? out_index[r] : r) * stride;
        for (uint32_t i = 0; i < s.n_out; i++)
            to[i] = s.indexed ? from[i] + bias[i] : from[i];
    }
    moe_cuda_products products = {.type = c->type,
                                  .n_in = c->n_in,
                                  .n_out = s.n_out,
                                  .row_bytes = c->row_bytes,
                                  .x_q8 = c->x_q8,
                                  .out_stride = stride,
                                  .n_products = 1,
                                  .first = {.weights = weights.data,
                                            .out = out,
                                            .bias = s.indexed ? bias : NULL,
                                            .x_index = s.indexed ? x_index : NULL,
                                            .out_index = s.indexed ? out_index : NULL,
                                            .n_rows = s.n_rows},
                                  .matrix_from = s.matrix_from,
                                  .wide_from = s.wide_from,
                                  .wide_rest = s.wide_rest,
                                  .narrow_upto = s.narrow_upto};
    moe_cuda_matmul(NULL, &products);
    check_same("product", c->type, expected, out, MAX_ROWS * stride);
    free(out);
    free(expected);
    guarded_free(&weights);
}

static bool is_quantised(uint32_t type)
{
    const moe_dtype_info *info = moe_dtype_info_of(type);
    return info != NULL && !info->is_float && !info->cpu_only;
}

static void tiles_equal_the_reference(void **state)
{
    (void)state;
    static const uint32_t blocks32[] = {32, 96, 288, 576};
    static const uint32_t blocks256[] = {256, 512, 768, 256};
    static const uint32_t rows[] = {9, 16, 17, 31, 33, 64, 70, 100};
    static const uint32_t outs[] = {1, 31, 33, 64, 65, 131, 96, 32};
    uint64_t random = 1;
    for (uint32_t type = 0; type < MOE_DTYPE_LIMIT; type++) {
        if (!is_quantised(type))
            continue;
        const uint32_t elems = moe_dtype_info_of(type)->block_elems;
        const bool large = elems == 256;
        for (uint32_t s = 0; s < 4; s++) {
            if ((large ? blocks256 : blocks32)[s] % elems != 0 ||
                (test_is_small() && s != type % 4))
                continue;
            product_case c = case_new((moe_dtype)type, (large ? blocks256 : blocks32)[s], MAX_OUT,
                                      X_ROWS, s % 2 == 1 ? FILL_AWKWARD : FILL_PLAIN, &random);
            for (uint32_t i = 0; i < 8; i++) {
                for (uint32_t tiling = 0; tiling < N_TILINGS; tiling++) {
                    if (test_is_small() && i != (type + 3 * tiling) % 8)
                        continue;
                    shape one = {.n_rows = rows[i],
                                 .n_out = outs[(i + s + tiling) % 8],
                                 .slack = 2 * ((i + s) % 8),
                                 .indexed = (i + tiling) % 2 != 0};
                    check_shape(&c, tiled(one, tiling));
                }
            }
            case_free(&c);
        }
    }
}

/* Whichever kernel takes them, and by the constants. */
static void any_rows_have_the_same_bits(void **state)
{
    (void)state;
    static const uint32_t rows[] = {1, 2, 3, 5, 8, 9, 16, 33, 65};
    static const uint32_t from[] = {0, 1, MOE_CUDA_NEVER};
    uint64_t random = 2;
    for (uint32_t type = 0; type < MOE_DTYPE_LIMIT; type++) {
        if (!is_quantised(type))
            continue;
        product_case c = case_new((moe_dtype)type, 256, MAX_OUT, X_ROWS, FILL_PLAIN, &random);
        for (uint32_t i = 0; i < 9; i++) {
            if (test_leaves_out(i + type, 5))
                continue;
            for (uint32_t k = 0; k < 3; k++)
                check_shape(&c, (shape){.n_rows = rows[i],
                                        .n_out = 70,
                                        .indexed = i % 2 != 0,
                                        .matrix_from = from[k]});
        }
        case_free(&c);
    }
}

/* MXFP4 may begin anywhere and has rows of an odd number of bytes; blocks of whole words may lie
 * beside the words. */
static void odd_addresses_make_no_difference(void **state)
{
    (void)state;
    static const moe_dtype types[] = {MOE_DTYPE_MXFP4, MOE_DTYPE_MXFP4, MOE_DTYPE_Q4_K,
                                      MOE_DTYPE_Q4_1};
    static const uint32_t sizes[] = {32, 800, 256, 288};
    uint64_t random = 3;
    for (uint32_t i = 0; i < 4; i++) {
        product_case c = case_new(types[i], sizes[i], MAX_OUT, X_ROWS, FILL_PLAIN, &random);
        for (uint32_t slack = 0; slack < 17; slack += test_is_small() ? 6 : i < 2 ? 1 : 2)
            for (uint32_t tiling = 0; tiling < N_TILINGS; tiling++)
                check_shape(&c, tiled((shape){.n_rows = 35, .n_out = 67, .slack = slack}, tiling));
        case_free(&c);
    }
}

/* The greatest sums of a run that there are: codes and activations at either end of their range. */
static void greatest_sums_are_exact(void **state)
{
    (void)state;
    static const uint8_t fillings[] = {0x00, 0xff, 0x80, 0x7f, 0x88, 0x08};
    uint64_t random = 4;
    for (uint32_t type = 0; type < MOE_DTYPE_LIMIT; type++) {
        if (!is_quantised(type))
            continue;
        product_case c = case_new((moe_dtype)type, 512, 64, X_ROWS, FILL_PLAIN, &random);
        const size_t bytes = 64 * c.row_bytes;
        uint8_t *scales = memory_of(bytes);
        memcpy(scales, c.weights, bytes);
        for (uint32_t i = 0; i < X_ROWS * 512; i++)
            c.x[i] = (i / 512 + i / 16 % 3) % 2 != 0 ? 2.0f : -2.0f;
        for (uint32_t f = 0; f < 6; f++) {
            if (test_leaves_out(f + type, 6))
                continue;
            /* Halves of such bytes are finite but for 0xffff and 0x7f7f, which are NaNs. */
            memset(c.weights, fillings[f], bytes);
            case_compute(&c);
            check_shape(&c, tiled((shape){.n_rows = 64, .n_out = 64}, f % 3));
            const size_t block = moe_dtype_info_of(type)->block_bytes;
            for (size_t b = 0; b < bytes; b += block) {
                memcpy(c.weights + b, scales + b, type == MOE_DTYPE_MXFP4 ? 1 : 2);
                if (block > 2)
                    memcpy(c.weights + b + block - 4, scales + b + block - 4, 4);
            }
            case_compute(&c);
            check_shape(&c, tiled((shape){.n_rows = 64, .n_out = 64}, (f + 1) % 3));
        }
        free(scales);
        case_free(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiles_equal_the_reference),
        cmocka_unit_test(any_rows_have_the_same_bits),
        cmocka_unit_test(odd_addresses_make_no_difference),
        cmocka_unit_test(greatest_sums_are_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
