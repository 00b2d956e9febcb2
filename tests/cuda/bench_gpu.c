/* SPDX-License-Identifier: MIT */
/* Measures a GPU through the device contract: its memory's bandwidth, products with one row as a
 * share of it for every type of weights, the link by the size of the copies, alone and in parallel
 * with arithmetic, and what the other files of this name measure. For gpu_suite.sh and
 * bench/gpu_day.sh. Times are the host's, over many operations that end with a wait.
 *
 *     bench_gpu [--quick] [--exact-attention] [--figures FILE] [--matrix-tflops N] [PART...] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_gpu.h"
#include "cuda/cuda_module.h"
#include "runtime/base/clock.h"
#include "runtime/base/dtype.h"

#define N_IN       BENCH_N_IN
#define N_MATRICES BENCH_N_MATRICES
#define N_OUT      24576u /* so that a product takes longer than its launch */

const moe_cuda_module *moe_cuda_module_entry(void);

int bench_failed(const bench *b)
{
    fprintf(stderr, "bench_gpu: %s\n", b->err.message);
    return 1;
}

int bench_sync(bench *b, uint64_t *now_ns)
{
    int status = b->ops->sync(b->device, &b->err);
    *now_ns = moe_now_ns();
    return status != MOE_OK ? bench_failed(b) : 0;
}

int bench_fill(bench *b, void *memory, size_t bytes)
{
    const size_t most = BENCH_ROWS * N_IN * sizeof(float);
    for (size_t at = 0; at < bytes; at += most) {
        size_t n = bytes - at < most ? bytes - at : most;
        if (b->ops->copy(b->device, (uint8_t *)memory + at, b->x, n, &b->err) != MOE_OK) {
            return bench_failed(b);
        }
    }
    return 0;
}

static int compare_times(const void *left, const void *right)
{
    double a = *(const double *)left;
    double b = *(const double *)right;
    return (a > b) - (a < b);
}

double bench_at_share(double *times, size_t n, double share)
{
    qsort(times, n, sizeof *times, compare_times);
    return times[(size_t)(share * (double)(n - 1))];
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
    bench_figure_put(b->json, &(bench_figure){.subject = "memory",
                                              .of = "copies on the device, read and written",
                                              .value = b->memory_bytes_per_s * 1e-9,
                                              .unit = "GB/s"});
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
    const void *first = NULL;
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
            status = first == NULL ? b->ops->upload(b->device, data, host, bytes, &b->err)
                                   : b->ops->copy(b->device, data, first, bytes, &b->err);
            first = data;
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
    char of[64];
    snprintf(of, sizeof of, "1 row, %u x %u %s", N_IN, b->n_out, moe_dtype_info_of(type)->name);
    bench_figure_put(b->json, &(bench_figure){.subject = "product",
                                              .of = of,
                                              .value = bytes / seconds * 1e-9,
                                              .unit = "GB/s",
                                              .bound = b->memory_bytes_per_s * 1e-9,
                                              .bound_of = "memory"});
    free_matrices(b);
    return 0;
}

static int measure_types(bench *b)
{
    for (uint32_t type = 0; type < MOE_DTYPE_LIMIT; type++) {
        const moe_dtype_info *info = moe_dtype_info_of(type);
        if (info == NULL || info->cpu_only) {
            continue;
        }
        if (measure_products(b, (moe_dtype)type) != 0) {
            return 1;
        }
    }
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
            char of[64];
            snprintf(of, sizeof of, "pieces of %.2f MiB%s", (double)piece / 1048576.0,
                     beside ? ", beside products" : "");
            bench_figure_put(b->json, &(bench_figure){.subject = "link",
                                                      .of = of,
                                                      .value = best * 1e-9,
                                                      .unit = "GB/s",
                                                      .bound = plain * 1e-9,
                                                      .bound_of = "one plain copy"});
        }
    }
    free_matrices(b);
    b->ops->free(b->device, dst, bytes);
    b->device->link->host_free(b->device, src, bytes);
    return 0;
}

static const struct part {
    const char *name;
    int (*run)(bench *b);
} parts[] = {
    {"memory", measure_memory},     {"types", measure_types},   {"rows", bench_many_rows},
    {"attention", bench_attention}, {"experts", bench_experts}, {"link", measure_link},
    {"pinning", bench_pinning},     {"staging", bench_staging}, {"direct", bench_direct_use}};

#define N_PARTS (sizeof parts / sizeof parts[0])

/* wanted: names of parts; none: all. The memory's speed is measured in any case, because shares
 * of it are. A part that fails does not keep the next from running, unless the device is lost. */
static int run_parts(bench *b, char *const *wanted, int n_wanted)
{
    int code = 0;
    for (size_t i = 0; i < N_PARTS; i++) {
        bool run = n_wanted == 0 || i == 0;
        for (int w = 0; w < n_wanted; w++) {
            run = run || strcmp(wanted[w], parts[i].name) == 0;
        }
        code |= run ? parts[i].run(b) : 0;
    }
    return code;
}

static int open_bench(bench *b)
{
    moe_device_limits limits = {.linear = {BENCH_ROWS, N_IN},
                                .ff = {{8 * BENCH_ROWS, 3072}},
                                .max_v_dim = 512,
                                .max_head_group = 128};
    static float values[BENCH_ROWS * N_IN];
    void *x = NULL;
    const moe_cuda_device_options options = {.exact_attention = b->exact_attention};
    if (moe_cuda_module_entry()->open(&b->device, &options, &b->err) != MOE_OK) {
        return bench_failed(b);
    }
    b->ops = b->device->ops;
    printf("%s\n", b->device->name);
    for (uint32_t i = 0; i < BENCH_ROWS * N_IN; i++) {
        values[i] = (float)(i % 19) * 0.125f - 1.0f;
    }
    if (b->ops->reserve(b->device, &limits, &b->err) != MOE_OK ||
        b->ops->alloc(b->device, sizeof values, &x, &b->err) != MOE_OK ||
        b->ops->upload(b->device, x, values, sizeof values, &b->err) != MOE_OK) {
        return bench_failed(b);
    }
    b->x = x;
    return 0;
}

static int usage(void)
{
    fprintf(stderr, "usage: bench_gpu [--quick] [--exact-attention] [--figures FILE] "
                    "[--matrix-tflops N] [PART...]\nparts:");
    for (size_t i = 0; i < N_PARTS; i++) {
        fprintf(stderr, " %s", parts[i].name);
    }
    fprintf(stderr, "\n");
    return 2;
}

static bool is_part(const char *name)
{
    for (size_t i = 0; i < N_PARTS; i++) {
        if (strcmp(name, parts[i].name) == 0) {
            return true;
        }
    }
    return false;
}

/* --quick: everything once and small, to see that it runs. */
int main(int argc, char **argv)
{
    bench b = {.err = {""}};
    int at = 1;
    for (; at < argc && argv[at][0] == '-'; at++) {
        const char *value = at + 1 < argc ? argv[at + 1] : NULL;
        if (strcmp(argv[at], "--quick") == 0) {
            b.quick = true;
        } else if (strcmp(argv[at], "--exact-attention") == 0) {
            b.exact_attention = true;
        } else if (strcmp(argv[at], "--figures") == 0 && value != NULL) {
            b.json = fopen(value, "a");
            if (b.json == NULL) {
                perror(value);
                return 1;
            }
            at++;
        } else if (strcmp(argv[at], "--matrix-tflops") == 0 && value != NULL) {
            b.tera_flops = strtod(value, NULL);
            at++;
        } else {
            return usage();
        }
    }
    for (int i = at; i < argc; i++) {
        if (!is_part(argv[i])) {
            return usage();
        }
    }
    int code = open_bench(&b);
    code = code != 0 ? code : run_parts(&b, argv + at, argc - at);
    if (b.device != NULL) {
        b.ops->close(b.device);
    }
    if (b.json != NULL && fclose(b.json) != 0) {
        perror("bench_gpu: its figures");
        code = 1;
    }
    return code;
}
