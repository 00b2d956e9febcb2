/* SPDX-License-Identifier: MIT */
/* Shared by the parts of bench_gpu. */
#ifndef MOE_TESTS_BENCH_GPU_H
#define MOE_TESTS_BENCH_GPU_H

#include "runtime/device/device.h"

#define BENCH_N_IN       8192u /* of the products */
#define BENCH_N_MATRICES 8u    /* in turn, so that no cache holds them */

typedef struct bench {
    moe_device *device;
    const moe_device_ops *ops;
    bool quick; /* everything once and small: whether it runs, not what it reaches */
    double memory_bytes_per_s;
    moe_linear linears[BENCH_N_MATRICES];
    uint32_t n_out;
    float *x; /* device, a row of BENCH_N_IN */
    moe_error err;
} bench;

/* Prints the error; returns 1, as every part does that fails. */
int bench_failed(const bench *b);
/* Experts read over the link by the kernels, against experts that are copied first, by size. */
int bench_direct_use(bench *b);

/* Products of many rows by each kernel that there is for them. */
int bench_many_rows(bench *b);

#endif
