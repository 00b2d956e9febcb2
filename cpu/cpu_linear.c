/* SPDX-License-Identifier: MIT */
/* Linear maps: several weights with the same input, and one weight for each head. */
#include <stdlib.h>

#include "cpu/cpu_internal.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/base/moe_assert.h"

#define MAX_LINEARS 4u

typedef struct quantize_job {
    moe_cpu_device *cpu;
    const float *x;
    size_t x_stride;
    moe_q8_rows *rows;
} quantize_job;

static void quantize_range(void *context, uint32_t begin, uint32_t end)
{
    const quantize_job *job = context;
    job->cpu->matmul.quantize_rows(job->x + begin * job->x_stride, job->x_stride, end - begin,
                                   job->rows->n_in, job->rows, begin);
}

void moe_cpu_quantize(moe_cpu_device *cpu, const float *x, size_t x_stride, uint32_t n_rows,
                      uint32_t n_in, void *memory, moe_q8_rows *rows)
{
    MOE_ASSERT(n_in % MOE_Q8_BLOCK == 0 && (uintptr_t)memory % 64 == 0);
    moe_q8_rows_bind(rows, memory, n_rows, n_in);
    quantize_job job = {cpu, x, x_stride, rows};
    moe_cpu_for(cpu, n_rows, 4, quantize_range, &job);
}

int moe_cpu_linear(moe_device *device, const float *x, uint32_t n_rows, uint32_t n_in,
                   const moe_linear *linears, uint32_t n_linears, moe_error *err)
{
    moe_cpu_device *cpu = moe_cpu_device_of(device);
    moe_cpu_product products[MAX_LINEARS];
    if (n_linears > MAX_LINEARS) {
        return moe_fail(err, MOE_ERR_INTERNAL, "%u linear maps in one call", n_linears);
    }
    bool quantized = false;
    for (uint32_t i = 0; i < n_linears; i++) {
        MOE_ASSERT(linears[i].weight.n_in == n_in && linears[i].weight.data != NULL);
        MOE_ASSERT(linears[i].weight.row_bytes ==
                   moe_dtype_row_bytes(linears[i].weight.type, n_in));
        quantized |= !moe_dtype_info_of(linears[i].weight.type)->is_float;
    }
    moe_q8_rows x_q8 = {0};
    if (quantized) {
        moe_cpu_quantize(cpu, x, n_in, n_rows, n_in, cpu->x_q8_memory, &x_q8);
    }
    for (uint32_t i = 0; i < n_linears; i++) {
        products[i] = (moe_cpu_product){.weight = linears[i].weight,
                                        .x_q8 = x_q8,
                                        .args = {.n_rows = n_rows,
                                                 .x = x,
                                                 .x_stride = n_in,
                                                 .out = linears[i].out,
                                                 .out_stride = linears[i].weight.n_out},
                                        .bias = linears[i].bias};
    }
    moe_cpu_run_products(cpu, products, n_linears);
    return MOE_OK;
}

typedef struct head_quantize_job {
    moe_cpu_device *cpu;
    const moe_head_linear *linear;
    uint32_t n_rows;
    moe_q8_rows *x_q8; /* rows in the order [head][row] */
} head_quantize_job;

static void head_quantize_range(void *context, uint32_t begin, uint32_t end)
{
    const head_quantize_job *job = context;
    const moe_head_linear *linear = job->linear;
    for (uint32_t h = begin; h < end; h++) {
        job->cpu->matmul.quantize_rows(linear->x + h * linear->x_head_stride, linear->x_row_stride,
                                       job->n_rows, linear->weight.n_in, job->x_q8,
                                       h * job->n_rows);
    }
}

int moe_cpu_head_linear(moe_device *device, const moe_head_linear *linear, uint32_t n_rows,
                        moe_error *err)
{
    moe_cpu_device *cpu = moe_cpu_device_of(device);
    const moe_weight *weight = &linear->weight;
    moe_cpu_product *products = moe_calloc(linear->n_head, sizeof *products);
    if (products == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for the products of %u heads",
                        linear->n_head);
    }
    bool quantized = !moe_dtype_info_of(weight->type)->is_float;
    moe_q8_rows x_q8 = {0};
    if (quantized) {
        head_quantize_job job = {cpu, linear, n_rows, &x_q8};
        moe_q8_rows_bind(&x_q8, cpu->x_q8_memory, n_rows * linear->n_head, weight->n_in);
        moe_cpu_for(cpu, linear->n_head, 1, head_quantize_range, &job);
    }
    uint32_t n_out = weight->n_out / linear->n_head;
    MOE_ASSERT(n_out * linear->n_head == weight->n_out);
    for (uint32_t h = 0; h < linear->n_head; h++) {
        moe_cpu_product *product = &products[h];
        product->weight = *weight;
        product->weight.n_out = n_out;
        product->weight.data =
            (const uint8_t *)weight->data + (size_t)h * n_out * weight->row_bytes;
        product->x_q8 = quantized ? moe_cpu_rows_from(&x_q8, h * n_rows) : x_q8;
        product->args = (moe_matmul_args){.n_rows = n_rows,
                                          .x = linear->x + h * linear->x_head_stride,
                                          .x_stride = linear->x_row_stride,
                                          .out = linear->out + h * linear->out_head_stride,
                                          .out_stride = linear->out_row_stride};
    }
    moe_cpu_run_products(cpu, products, linear->n_head);
    free(products);
    return MOE_OK;
}
