/* SPDX-License-Identifier: MIT */
/* A missing expert can be copied to the device and used there, or kernels can read it in
 * page-locked host memory, which has one address for both. Reading saves the start of the copy and
 * one trip through the device's memory; copying moves larger pieces and can be done ahead. Measures
 * both for a layer of a token's experts, by their size. */
#include <stdio.h>
#include <string.h>

#include "bench_gpu.h"
#include "runtime/base/clock.h"
#include "runtime/base/dtype.h"

#define N_USED     8u                  /* experts of a layer */
#define POOL_BYTES ((size_t)256 << 20) /* of host memory, gone through in turn */
#define SLOT_BYTES ((size_t)64 << 20)  /* on the device: N_USED experts of the largest size */

static size_t part_bytes(uint32_t n_in, uint32_t n_ff)
{
    return n_ff * moe_dtype_row_bytes(MOE_DTYPE_Q8_0, n_in);
}

typedef struct direct_bench {
    bench *b;
    uint8_t *pool;  /* host */
    uint8_t *slots; /* device */
    float *out;
    size_t pool_bytes;
    size_t at; /* where in the pool the next expert begins */
    uint32_t n_in;
    uint32_t n_ff;
} direct_bench;

static moe_weight part_of(const uint8_t *data, uint32_t n_in, uint32_t n_out)
{
    return (moe_weight){
        MOE_DTYPE_Q8_0, data, n_in, n_out, moe_dtype_row_bytes(MOE_DTYPE_Q8_0, n_in), 0};
}

static moe_expert_work work_of(const direct_bench *d, const uint8_t *expert, const uint32_t *x_row,
                               const uint32_t *out_row)
{
    size_t part = part_bytes(d->n_in, d->n_ff);
    return (moe_expert_work){.gate = part_of(expert, d->n_in, d->n_ff),
                             .up = part_of(expert + part, d->n_in, d->n_ff),
                             .down = part_of(expert + 2 * part, d->n_ff, d->n_in),
                             .x_index = x_row,
                             .out_index = out_row,
                             .n_rows = 1};
}

/* The next N_USED experts of the pool. */
static int run_layer(direct_bench *d, bool copied)
{
    bench *b = d->b;
    size_t bytes = 3 * part_bytes(d->n_in, d->n_ff);
    moe_expert_work works[N_USED];
    uint64_t tickets[N_USED];
    uint32_t x_row = 0, out_rows[N_USED];
    for (uint32_t e = 0; e < N_USED; e++) {
        if (d->at + bytes > d->pool_bytes) {
            d->at = 0;
        }
        uint8_t *expert = copied ? d->slots + e * bytes : d->pool + d->at;
        moe_copy_range range = {expert, d->pool + d->at, bytes};
        if (copied &&
            b->device->link->copy_begin(b->device, &range, 1, &tickets[e], &b->err) != MOE_OK) {
            return bench_failed(b);
        }
        out_rows[e] = e;
        works[e] = work_of(d, expert, &x_row, &out_rows[e]);
        d->at += bytes;
    }
    for (uint32_t e = 0; copied && e < N_USED; e++) {
        if (b->device->link->copy_wait(b->device, tickets[e], &b->err) != MOE_OK) {
            return bench_failed(b);
        }
    }
    if (b->ops->experts(b->device, b->x, 1, d->n_in, works, N_USED, d->out, d->n_in, &b->err) !=
            MOE_OK ||
        b->ops->sync(b->device, &b->err) != MOE_OK) {
        return bench_failed(b);
    }
    return 0;
}

/* The better half of the layers' mean would hide the link's hiccups: it is the median that counts.
 */
static int time_layers(direct_bench *d, bool copied, double *us)
{
    enum { MOST = 101 };
    double times[MOST];
    int n = d->b->quick ? 1 : MOST;
    for (int i = -(n > 1 ? 5 : 0); i < n; i++) {
        uint64_t begin = moe_now_ns();
        if (run_layer(d, copied) != 0) {
            return 1;
        }
        double time = (double)(moe_now_ns() - begin) * 1e-3;
        int at = i;
        for (; i >= 0 && at > 0 && times[at - 1] > time; at--) {
            times[at] = times[at - 1];
        }
        if (i >= 0) {
            times[at] = time;
        }
    }
    *us = times[n / 2];
    return 0;
}

static int measure_size(direct_bench *d, uint32_t n_in, uint32_t n_ff)
{
    double copied, direct;
    d->n_in = n_in;
    d->n_ff = n_ff;
    if (time_layers(d, true, &copied) != 0 || time_layers(d, false, &direct) != 0) {
        return 1;
    }
    double bytes = 3.0 * (double)part_bytes(n_in, n_ff);
    char of[64];
    snprintf(of, sizeof of, "%u experts of %.1f KiB, read over the link", N_USED, bytes / 1024.0);
    bench_figure_put(d->b->json, &(bench_figure){.subject = "direct",
                                                 .of = of,
                                                 .value = N_USED * bytes / direct * 1e-3,
                                                 .unit = "GB/s",
                                                 .beside = N_USED * bytes / copied * 1e-3,
                                                 .beside_of = "copied first"});
    return 0;
}

int bench_direct_use(bench *b)
{
    static const uint32_t shapes[][2] = {{128, 32},   {128, 64},    {256, 64},   {256, 128},
                                         {512, 128},  {512, 256},   {1024, 256}, {1024, 512},
                                         {2048, 512}, {2048, 1024}, {4096, 640}};
    direct_bench d = {.b = b, .pool_bytes = b->quick ? (size_t)1 << 20 : POOL_BYTES};
    size_t slots = b->quick ? (size_t)1 << 20 : SLOT_BYTES + (SLOT_BYTES >> 3);
    void *pool = NULL;
    void *memory = NULL;
    void *out = NULL;
    if (b->device->link->host_alloc(b->device, d.pool_bytes, &pool, &b->err) != MOE_OK ||
        b->ops->alloc(b->device, slots, &memory, &b->err) != MOE_OK ||
        b->ops->alloc(b->device, N_USED * BENCH_N_IN * sizeof(float), &out, &b->err) != MOE_OK) {
        return bench_failed(b);
    }
    memset(pool, 0x2c, d.pool_bytes);
    d.pool = pool;
    d.slots = memory;
    d.out = out;
    size_t n = b->quick ? 2 : sizeof shapes / sizeof shapes[0];
    int code = 0;
    for (size_t i = 0; i < n && code == 0; i++) {
        code = measure_size(&d, shapes[i][0], shapes[i][1]);
    }
    b->ops->free(b->device, memory, slots);
    b->ops->free(b->device, out, N_USED * BENCH_N_IN * sizeof(float));
    b->device->link->host_free(b->device, pool, d.pool_bytes);
    return code;
}
