/* SPDX-License-Identifier: MIT */
/* Shared by the parts of bench_gpu. */
#ifndef MOE_TESTS_BENCH_GPU_H
#define MOE_TESTS_BENCH_GPU_H

#include "bench_figures.h"
#include "runtime/device/device.h"

#define BENCH_N_IN       8192u /* of the products */
#define BENCH_ROWS       512u  /* of x */
#define BENCH_N_MATRICES 8u    /* in turn, so that no cache holds them */

typedef struct bench {
    moe_device *device;
    const moe_device_ops *ops;
    bool exact_attention; /* attention without matrix units */
    bool quick;           /* everything once and small: whether it runs, not what it reaches */
    double memory_bytes_per_s;
    moe_linear linears[BENCH_N_MATRICES];
    uint32_t n_out;
    float *x;          /* device, [BENCH_ROWS][BENCH_N_IN] */
    FILE *json;        /* of figures; or NULL */
    double tera_flops; /* of the matrix units, dense bf16, by the datasheet; 0: not known */
    moe_error err;
} bench;

/* Prints the error; returns 1, as every part does that fails. */
int bench_failed(const bench *b);
/* Waits for the device, then stores the time; returns 1 after a failure. */
int bench_sync(bench *b, uint64_t *now_ns);
/* Fills device memory with x, again and again. */
int bench_fill(bench *b, void *memory, size_t bytes);
/* Sorts the times; returns the one at this share of them: 0.5 is the median. */
double bench_at_share(double *times, size_t n, double share);

/* Experts read over the link by the kernels, against experts that are copied first, by size. */
int bench_direct_use(bench *b);

/* Products of many rows by each kernel that there is for them. */
int bench_many_rows(bench *b);
/* Attention by depth, of one row and of a prompt's rows. */
int bench_attention(bench *b);
/* A layer's experts in the shapes of common models: of one token, of eight, of a prompt. */
int bench_experts(bench *b);
/* Page-locking host memory, by size. */
int bench_pinning(bench *b);
/* Small copies of an operation's arrays, with copies of experts queued and without. */
int bench_staging(bench *b);

#endif
