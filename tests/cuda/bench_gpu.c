/* SPDX-License-Identifier: MIT */
/* Measures a GPU through the device contract alone: its memory's bandwidth, products with one row
 * as a share of it, and the link by the size of the copies, alone and in parallel with arithmetic.
 * For gpu_suite.sh. Times are the host's, over many operations that end with a wait. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_gpu.h"
#include "cuda/cuda_module.h"
#include "runtime/base/clock.h"
#include "runtime/base/dtype.h"

#define N_IN       BENCH_N_IN
#define N_MATRICES BENCH_N_MATRICES
#define N_OUT      8192u

const moe_cuda_module *moe_cuda_module_entry(void);

int bench_failed(const bench *b)
{
    fprintf(stderr, "bench_gpu: %s\n", b->err.message);
    return 1;
}

static size_t copy_bytes(const bench *b)
{
    return (size_t)1 << (b->quick ? 20 : 30);
}

static size_t link_bytes(const bench *b)
{
    return (size_t)1 << (b->quick ? 20 : 28);
}

static int measure_memory(bench *b)
{
    const uint32_t n_copies = b->quick ? 1 : 20;
    const size_t bytes = copy_bytes(b);
    void *from = NULL;
    void *to = NULL;
    if (b->ops->alloc(b->device, bytes, &from, &b->err) != MOE_OK ||
        b->ops->alloc(b->device, bytes, &to, &b->err) != MOE_OK) {
        return bench_failed(b);
    }
    uint64_t begin = 0;
    for (uint32_t i = 0; i <= n_copies; i++) {
        if (b->ops->copy(b->device, to, from, bytes, &b->err) != MOE_OK) {
            return bench_failed(b);
        }
        if (i == 0) { /* the first one warms up */
            if (b->ops->sync(b->device, &b->err) != MOE_OK) {
                return bench_failed(b);
            }
            begin = moe_now_ns();
        }
    }
    if (b->ops->sync(b->device, &b->err) != MOE_OK) {
        return bench_failed(b);
    }
    double seconds = (double)(moe_now_ns() - begin) * 1e-9;
    b->memory_bytes_per_s = 2.0 * n_copies * (double)bytes / seconds;
    printf("memory: %.0f GB/s (copies on the device, read and written)\n",
           b->memory_bytes_per_s * 1e-9);
    b->ops->free(b->device, from, bytes);
    b->ops->free(b->device, to, bytes);
    return 0;
}

/* Bytes of 0x2c: as scales of halves 0.065, as codes anything. */
static int make_matrices(bench *b, moe_dtype type)
{
    size_t row_bytes = moe_dtype_row_bytes(type, N_IN);
    b->n_out = b->quick ? 8 : N_OUT;
    size_t bytes = row_bytes * b->n_out;
    uint8_t *host = malloc(bytes);
    if (host == NULL) {
        return 1;
    }
    memset(host, 0x2c, bytes);
    int status = MOE_OK;
    for (uint32_t i = 0; i < N_MATRICES && status == MOE_OK; i++) {
        void *data = NULL;
        void *out = NULL;
        status = b->ops->alloc(b->device, bytes, &data, &b->err);
        if (status == MOE_OK) {
            status = b->ops->alloc(b->device, b->n_out * sizeof(float), &out, &b->err);
        }
        if (status == MOE_OK) {
            status = b->ops->upload(b->device, data, host, bytes, &b->err);
        }
        b->linears[i] = (moe_linear){{type, data, N_IN, b->n_out, row_bytes, 0}, NULL, out};
    }
    free(host);
    return status != MOE_OK ? bench_failed(b) : 0;
}

static void free_matrices(bench *b)
{
    for (uint32_t i = 0; i < N_MATRICES; i++) {
        const moe_weight *weight = &b->linears[i].weight;
        b->ops->free(b->device, (void *)weight->data, weight->row_bytes * b->n_out);
        b->ops->free(b->device, b->linears[i].out, b->n_out * sizeof(float));
    }
}

static int run_products(bench *b, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (b->ops->linear(b->device, b->x, 1, N_IN, &b->linears[i % N_MATRICES], 1, &b->err) !=
            MOE_OK) {
            return bench_failed(b);
        }
    }
    return 0;
}

static int measure_products(bench *b, moe_dtype type)
{
    const uint32_t n_products = b->quick ? N_MATRICES : 400;
    if (make_matrices(b, type) != 0 || run_products(b, N_MATRICES) != 0 ||
        b->ops->sync(b->device, &b->err) != MOE_OK) {
        return bench_failed(b);
    }
    uint64_t begin = moe_now_ns();
    if (run_products(b, n_products) != 0 || b->ops->sync(b->device, &b->err) != MOE_OK) {
        return bench_failed(b);
    }
    double seconds = (double)(moe_now_ns() - begin) * 1e-9;
    double bytes = (double)n_products * b->n_out * (double)b->linears[0].weight.row_bytes;
    printf("product, 1 row, %u x %u %-5s %6.0f GB/s, %3.0f%% of memory\n", N_IN, b->n_out,
           moe_dtype_info_of(type)->name, bytes / seconds * 1e-9,
           100.0 * bytes / seconds / b->memory_bytes_per_s);
    free_matrices(b);
    return 0;
}

/* link_bytes() in pieces of so many bytes, as many under way as the link takes. */
static int send(bench *b, uint8_t *dst, const uint8_t *src, size_t piece, bool beside_products)
{
    const moe_link_ops *link = b->device->link;
    uint64_t tickets[MOE_MAX_COPIES];
    size_t n = link_bytes(b) / piece;
    for (size_t i = 0; i < n + MOE_MAX_COPIES; i++) {
        uint64_t *ticket = &tickets[i % MOE_MAX_COPIES];
        if (i >= MOE_MAX_COPIES && i - MOE_MAX_COPIES < n &&
            link->copy_wait(b->device, *ticket, &b->err) != MOE_OK) {
            return bench_failed(b);
        }
        moe_copy_range range = {dst + i * piece, src + i * piece, piece};
        if (i < n && link->copy_begin(b->device, &range, 1, ticket, &b->err) != MOE_OK) {
            return bench_failed(b);
        }
        if (beside_products && run_products(b, 4) != 0) {
            return 1;
        }
    }
    return 0;
}

static int measure_link(bench *b)
{
    static const size_t pieces[] = {256u << 20, 16u << 20,  4u << 20,
                                    1u << 20,   256u << 10, 64u << 10};
    const size_t bytes = link_bytes(b);
    const uint32_t n_repeats = b->quick ? 1 : 4;
    void *dst = NULL;
    void *src = NULL;
    if (make_matrices(b, MOE_DTYPE_Q8_0) != 0 ||
        b->device->link->host_alloc(b->device, bytes, &src, &b->err) != MOE_OK ||
        b->ops->alloc(b->device, bytes, &dst, &b->err) != MOE_OK) {
        return bench_failed(b);
    }
    memset(src, 0x5a, bytes);
    double plain = 0.0;
    for (size_t p = 0; p < sizeof pieces / sizeof pieces[0]; p++) {
        size_t piece = pieces[p] < bytes ? pieces[p] : bytes;
        for (int beside = 0; beside <= 1; beside++) {
            double best = 0.0;
            for (uint32_t i = 0; i < n_repeats; i++) {
                uint64_t begin = moe_now_ns();
                if (send(b, dst, src, piece, beside != 0) != 0) {
                    return 1;
                }
                double speed = (double)bytes * 1e9 / (double)(moe_now_ns() - begin);
                best = speed > best ? speed : best;
                if (b->ops->sync(b->device, &b->err) != MOE_OK) {
                    return bench_failed(b);
                }
            }
            plain = p == 0 && beside == 0 ? best : plain;
            printf("link, pieces of %7.2f MiB%s %5.1f GB/s, %3.0f%% of one plain copy\n",
                   (double)piece / 1048576.0, beside ? ", beside products:" : ":", best * 1e-9,
                   100.0 * best / plain);
        }
    }
    free_matrices(b);
    b->ops->free(b->device, dst, bytes);
    b->device->link->host_free(b->device, src, bytes);
    return 0;
}

static int run_all(bench *b)
{
    static const moe_dtype types[] = {MOE_DTYPE_F16, MOE_DTYPE_Q8_0, MOE_DTYPE_Q6_K, MOE_DTYPE_Q4_K,
                                      MOE_DTYPE_MXFP4};
    int code = measure_memory(b);
    for (size_t i = 0; i < sizeof types / sizeof types[0] && code == 0; i++) {
        code = measure_products(b, types[i]);
    }
    code = code != 0 ? code : bench_many_rows(b);
    code = code != 0 ? code : measure_link(b);
    return code != 0 ? code : bench_direct_use(b);
}

/* Argument: --quick, to see that it runs. */
int main(int argc, char **argv)
{
    bench b = {.quick = argc == 2 && strcmp(argv[1], "--quick") == 0, .err = {""}};
    moe_device_limits limits = {.linear = {8, N_IN}, .ff = {{8, N_IN}}};
    if (moe_cuda_module_entry()->open(&b.device, &(moe_cuda_device_options){0}, &b.err) != MOE_OK) {
        return bench_failed(&b);
    }
    b.ops = b.device->ops;
    printf("%s\n", b.device->name);
    void *x = NULL;
    static float values[N_IN];
    for (uint32_t i = 0; i < N_IN; i++) {
        values[i] = (float)(i % 19) * 0.125f - 1.0f;
    }
    int code = 0;
    if (b.ops->reserve(b.device, &limits, &b.err) != MOE_OK ||
        b.ops->alloc(b.device, sizeof values, &x, &b.err) != MOE_OK ||
        b.ops->upload(b.device, x, values, sizeof values, &b.err) != MOE_OK) {
        code = bench_failed(&b);
    }
    b.x = x;
    code = code != 0 ? code : run_all(&b);
    b.ops->close(b.device);
    return code;
}
