/* SPDX-License-Identifier: MIT */
/* Compares products of many rows by either kernel, product.cuh and the matrix units with any tile,
 * to choose MOE_CUDA_MATRIX_ROWS and the tiles in product_launches.cu. Calls the launching
 * functions directly, on a stream of the bench. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "bench_gpu.h"
#include "cuda/kernels/product_launch.h"
#include "runtime/base/clock.h"
#include "runtime/base/dtype.h"
#include "runtime/base/error.h"

#define MAX_ROWS   512u
#define N_MATRICES 4u /* in turn */

typedef struct rows_bench {
    bench *b;
    cudaStream_t stream;
    moe_dtype type;
    uint32_t n; /* elements and outputs of a matrix */
    size_t matrix_bytes;
    uint8_t *weights; /* device, [N_MATRICES] */
    float *out;
    moe_q8_rows x_q8;
} rows_bench;

static int cuda_failed(const char *what, cudaError_t code)
{
    fprintf(stderr, "bench_gpu: %s: %s\n", what, cudaGetErrorString(code));
    return 1;
}

typedef enum product_way { PLAIN, TILES_16, TILES_32, TILES_64, AS_CHOSEN, N_WAYS } product_way;

static int run(rows_bench *r, uint32_t n_rows, product_way way, uint32_t repeats)
{
    static const uint32_t matrix_from[N_WAYS] = {MOE_CUDA_NEVER, 1, 1, 1, 0};
    static const uint32_t wide_from[N_WAYS] = {0, MOE_CUDA_NEVER, MOE_CUDA_NEVER, 1, 0};
    static const uint32_t narrow_upto[N_WAYS] = {0, MOE_CUDA_NEVER, 1, 0, 0};
    moe_cuda_products products = {.type = r->type,
                                  .n_in = r->n,
                                  .n_out = r->n,
                                  .row_bytes = moe_dtype_row_bytes(r->type, r->n),
                                  .x_q8 = r->x_q8,
                                  .out_stride = r->n,
                                  .n_products = 1,
                                  .first = {.out = r->out, .n_rows = n_rows},
                                  .matrix_from = matrix_from[way],
                                  .wide_from = wide_from[way],
                                  .wide_rest = way == TILES_64 ? 1 : 0,
                                  .narrow_upto = narrow_upto[way]};
    for (uint32_t i = 0; i < repeats; i++) {
        products.first.weights = r->weights + i % N_MATRICES * r->matrix_bytes;
        moe_cuda_matmul(r->stream, &products);
    }
    cudaError_t code = cudaGetLastError();
    code = code != cudaSuccess ? code : cudaStreamSynchronize(r->stream);
    return code != cudaSuccess ? cuda_failed("a product of many rows", code) : 0;
}

/* Microseconds a product. */
static int time_kernel(rows_bench *r, uint32_t n_rows, product_way way, double *us)
{
    const uint32_t repeats = r->b->quick ? 1 : n_rows > 64 ? 40 : 200;
    if (run(r, n_rows, way, r->b->quick ? 1 : N_MATRICES) != 0) {
        return 1; /* the first ones warm up */
    }
    uint64_t begin = moe_now_ns();
    if (run(r, n_rows, way, repeats) != 0) {
        return 1;
    }
    *us = (double)(moe_now_ns() - begin) * 1e-3 / repeats;
    return 0;
}

static int measure_rows(rows_bench *r, uint32_t n_rows)
{
    double us[N_WAYS];
    for (int k = 0; k < N_WAYS; k++) {
        if (time_kernel(r, n_rows, (product_way)k, &us[k]) != 0) {
            return 1;
        }
    }
    static const char *const names[N_WAYS] = {"no matrix units", "tiles of 16", "tiles of 32",
                                              "tiles of 64", "as chosen"};
    double operations = 2.0 * n_rows * r->n * r->n;
    double best = us[PLAIN];
    for (int k = TILES_16; k <= TILES_64; k++) {
        best = us[k] < best ? us[k] : best;
    }
    for (int k = 0; k < N_WAYS; k++) {
        char of[96];
        snprintf(of, sizeof of, "%u rows, %u x %u %s, %s", n_rows, r->n, r->n,
                 moe_dtype_info_of(r->type)->name, names[k]);
        bench_figure_put(r->b->json, &(bench_figure){.subject = "rows",
                                                     .of = of,
                                                     .value = operations / us[k] * 1e-6,
                                                     .unit = "TFLOP/s",
                                                     .bound = 2 * r->b->tera_flops,
                                                     .bound_of = "int8 matrix units",
                                                     .beside = operations / best * 1e-6,
                                                     .beside_of = "the best way"});
    }
    return 0;
}

static int measure_type(rows_bench *r, const uint32_t *rows, size_t n_counts)
{
    bench *b = r->b;
    r->matrix_bytes = moe_dtype_row_bytes(r->type, r->n) * r->n;
    const size_t bytes = N_MATRICES * r->matrix_bytes;
    void *weights = NULL;
    uint8_t *host = malloc(bytes);
    if (host == NULL) {
        return 1;
    }
    memset(host, 0x2c, bytes); /* as scales of halves 0.065, as codes anything */
    int code = 0;
    if (b->ops->alloc(b->device, bytes, &weights, &b->err) != MOE_OK ||
        b->ops->upload(b->device, weights, host, bytes, &b->err) != MOE_OK ||
        b->ops->sync(b->device, &b->err) != MOE_OK) {
        code = bench_failed(b);
    }
    r->weights = weights;
    for (size_t i = 0; i < n_counts && code == 0; i++) {
        code = measure_rows(r, rows[i]);
    }
    free(host);
    b->ops->free(b->device, weights, bytes);
    return code;
}

static int measure_all(rows_bench *r)
{
    static const moe_dtype types[] = {MOE_DTYPE_Q8_0, MOE_DTYPE_Q4_K, MOE_DTYPE_Q6_K,
                                      MOE_DTYPE_MXFP4};
    static const uint32_t rows[] = {8, 9, 16, 32, 64, 512};
    static const uint32_t quick_rows[] = {9, 40};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        r->type = types[i];
        if (measure_type(r, r->b->quick ? quick_rows : rows, r->b->quick ? 2 : 6) != 0) {
            return 1;
        }
    }
    return 0;
}

int bench_many_rows(bench *b)
{
    rows_bench r = {.b = b, .n = b->quick ? 256 : 4096};
    const size_t out_bytes = (size_t)MAX_ROWS * r.n * sizeof(float);
    const size_t q8_bytes = moe_q8_rows_bytes(MAX_ROWS, r.n);
    void *out = NULL;
    void *q8 = NULL;
    cudaError_t created = cudaStreamCreateWithPriority(&r.stream, cudaStreamNonBlocking, 0);
    if (created != cudaSuccess) {
        return cuda_failed("a stream", created);
    }
    int code = 0;
    if (b->ops->alloc(b->device, out_bytes, &out, &b->err) != MOE_OK ||
        b->ops->alloc(b->device, q8_bytes, &q8, &b->err) != MOE_OK ||
        b->ops->sync(b->device, &b->err) != MOE_OK) {
        code = bench_failed(b);
    }
    if (code == 0) {
        r.out = out;
        moe_q8_rows_bind(&r.x_q8, q8, MAX_ROWS, r.n);
        /* All rows are the same one. */
        moe_cuda_quantize quantize = {.x = b->x, .n_rows = MAX_ROWS, .out = r.x_q8};
        moe_cuda_quantize_rows(r.stream, &quantize);
        code = measure_all(&r);
    }
    b->ops->free(b->device, out, out_bytes);
    b->ops->free(b->device, q8, q8_bytes);
    cudaStreamDestroy(r.stream);
    return code;
}
