/* SPDX-License-Identifier: MIT */
#include "product_cases.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

void *memory_of(size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 127) / 64 * 64);
    assert_non_null(memory);
    memset(memory, 0x77, (bytes + 127) / 64 * 64);
    return memory;
}

static bool same(float a, float b)
{
    return (isnan(a) && isnan(b)) || memcmp(&a, &b, sizeof a) == 0;
}

void check_same(const char *what, moe_dtype type, const float *expected, const float *got, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!same(expected[i], got[i])) {
            fail_msg("%s %s: element %zu of %zu is %a, not %a", what, moe_dtype_name(type), i, n,
                     (double)got[i], (double)expected[i]);
        }
    }
}

void fill(fill_kind kind, float *x, size_t n, uint64_t *random)
{
    static const float magnitudes[] = {1, 0, 0x1p100f, 0x1p-100f, 0x1p-127f, 0x1p-149f, 4e-37f};
    for (size_t i = 0; i < n; i++) {
        x[i] = random_normal(random);
        if (kind == FILL_AWKWARD)
            x[i] *= magnitudes[i / 32 % 7];
        if (kind == FILL_AWKWARD && i / 32 % 11 == 10) /* amax 127: halves are ties */
            x[i] = i % 32 == 0 ? 127 : (float)(i % 32) - 0.5f;
        if (kind == FILL_WILD && i % 97 == 0)
            x[i] = (const float[]){INFINITY, -INFINITY, NAN, -0.0f}[random_bits(random) % 4];
    }
}

product_case case_new(moe_dtype type, uint32_t n_in, uint32_t n_out, uint32_t n_rows,
                      fill_kind kind, uint64_t *random)
{
    product_case c = {.type = type, .n_in = n_in, .n_out = n_out, .n_rows = n_rows};
    c.row_bytes = moe_dtype_row_bytes(type, n_in);
    c.weights = memory_of(n_out * c.row_bytes);
    c.expected = memory_of((size_t)n_rows * n_out * sizeof *c.expected);
    c.x = memory_of((size_t)n_rows * n_in * sizeof *c.x);
    random_rows(type, c.weights, n_out, n_in, random);
    fill(kind, c.x, (size_t)n_rows * n_in, random);
    memset(c.x + n_in, 0, n_in * sizeof *c.x); /* row 1 */
    if (!moe_dtype_info_of(type)->is_float)
        c.x_q8 = q8_rows_new(n_rows, n_in, &c.scratch);
    case_compute(&c);
    return c;
}

void case_compute(product_case *c)
{
    moe_matmul_kernels reference;
    moe_matmul_kernels_init(&reference, 0);
    if (c->scratch != NULL)
        reference.quantize_rows(c->x, c->n_in, c->n_rows, c->n_in, &c->x_q8, 0);
    reference.matmul[c->type](&(moe_matmul_args){.type = c->type,
                                                 .weights = c->weights,
                                                 .row_bytes = c->row_bytes,
                                                 .n_in = c->n_in,
                                                 .n_out = c->n_out,
                                                 .n_rows = c->n_rows,
                                                 .x_q8 = &c->x_q8,
                                                 .x = c->x,
                                                 .x_stride = c->n_in,
                                                 .out = c->expected,
                                                 .out_stride = c->n_out});
}

void case_free(product_case *c)
{
    free(c->weights);
    free(c->expected);
    free(c->x);
    free(c->scratch);
}
