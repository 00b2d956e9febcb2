/* SPDX-License-Identifier: MIT */
/* Rows in the form in which products with quantised weights read them (cpu/kernels/quant_rows.h): 8
 * bits an element, and a number for each block. Every device quantises its input to this form, with
 * the same bits, before it multiplies. So a row may travel in it: what the receiver unpacks differs
 * from the row, but is quantised to the same bits. */
#ifndef MOE_WORKERS_WORKER_ROWS_H
#define MOE_WORKERS_WORKER_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cpu/kernels/quant_rows.h"

/* How a job's rows are sent. */
typedef enum moe_rows_form {
    MOE_ROWS_FLOAT, /* float [n_rows][n_in] */
    MOE_ROWS_8_BITS /* int8_t q [n_rows][n_in], then float amax [n_rows][n_in / MOE_Q8_BLOCK] */
} moe_rows_form;

/* Whether rows of n_in elements can have the form. */
static inline bool moe_rows_can_be(moe_rows_form form, uint32_t n_in)
{
    return form == MOE_ROWS_FLOAT || (form == MOE_ROWS_8_BITS && n_in % MOE_Q8_BLOCK == 0);
}

static inline size_t moe_rows_bytes(moe_rows_form form, uint32_t n_rows, uint32_t n_in)
{
    const size_t row =
        form == MOE_ROWS_FLOAT ? n_in * sizeof(float) : n_in + n_in / MOE_Q8_BLOCK * sizeof(float);
    return n_rows * row;
}

/* Writes x [n_in] as row number `row` of n_rows to `to`: [moe_rows_bytes()], not aligned. */
void moe_rows_pack(moe_rows_form form, const float *x, uint32_t row, uint32_t n_rows, uint32_t n_in,
                   uint8_t *to);
/* Writes to x [n_rows][n_in]. Any bytes can be unpacked. */
void moe_rows_unpack(moe_rows_form form, const uint8_t *from, uint32_t n_rows, uint32_t n_in,
                     float *x);

#endif
