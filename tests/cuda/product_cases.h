/* SPDX-License-Identifier: MIT */
/* What the tests of weight products on a GPU share: activations, the reference's products, and how
 * results are compared. */
#ifndef MOE_TESTS_PRODUCT_CASES_H
#define MOE_TESTS_PRODUCT_CASES_H

#include "matmul_cases.h"

/* At 64 bytes, filled with 0x77. Ends the test when memory is short; free() takes it back. */
void *memory_of(size_t bytes);

/* Ends the test unless every element has the same bits, or both are NaNs. */
void check_same(const char *what, moe_dtype type, const float *expected, const float *got,
                size_t n);

/* AWKWARD: zeros, tiny and huge blocks, ties. WILD: infinities and NaNs besides; floats only. */
typedef enum fill_kind { FILL_PLAIN, FILL_AWKWARD, FILL_WILD } fill_kind;
void fill(fill_kind kind, float *x, size_t n, uint64_t *random);

/* A weight matrix with activations and the reference's products. */
typedef struct product_case {
    moe_dtype type;
    uint32_t n_in;
    uint32_t n_out;
    uint32_t n_rows;
    size_t row_bytes;
    uint8_t *weights; /* [n_out] */
    float *x;         /* [n_rows][n_in]; row 1 is zeros */
    moe_q8_rows x_q8;
    void *scratch;
    float *expected; /* [n_rows][n_out] */
} product_case;

product_case case_new(moe_dtype type, uint32_t n_in, uint32_t n_out, uint32_t n_rows,
                      fill_kind kind, uint64_t *random);
/* Again, after a change of weights or activations. */
void case_compute(product_case *c);
void case_free(product_case *c);

#endif
