/* SPDX-License-Identifier: MIT */
/* Norms that subtract the mean, and soft caps. */
#include "cpu/cpu_internal.h"
#include "runtime/base/moe_assert.h"

#define GRAIN_ELEMENTS 16384u /* with fewer elements, the caller's thread alone computes */

typedef struct forms_job {
    moe_cpu_device *cpu;
    const float *x, *weight, *bias;
    float *y;
    size_t n; /* elements of a row; for soft_cap(): of the whole array */
    size_t stride;
    float value;
} forms_job;

static uint32_t rows_per_task(size_t n)
{
    return n >= GRAIN_ELEMENTS ? 1 : (uint32_t)(GRAIN_ELEMENTS / n);
}

static void layer_norm_range(void *context, uint32_t begin, uint32_t end)
{
    const forms_job *job = context;
    for (uint32_t r = begin; r < end; r++) {
        job->cpu->vector.layer_norm(job->x + r * job->stride, job->weight, job->bias,
                                    job->y + r * job->stride, (uint32_t)job->n, job->value);
    }
}

int moe_cpu_layer_norm(moe_device *device, const float *x, const float *weight, const float *bias,
                       float *y, uint32_t n_rows, uint32_t n, size_t x_stride, float eps,
                       moe_error *err)
{
    MOE_ASSERT(x_stride >= n && n > 0);
    (void)err;
    moe_cpu_device *cpu = moe_cpu_device_of(device);
    forms_job job = {.cpu = cpu,
                     .x = x,
                     .weight = weight,
                     .bias = bias,
                     .y = y,
                     .n = n,
                     .stride = x_stride,
                     .value = eps};
    moe_cpu_for(cpu, n_rows, rows_per_task(n), layer_norm_range, &job);
    return MOE_OK;
}

static void soft_cap_range(void *context, uint32_t begin, uint32_t end)
{
    const forms_job *job = context;
    size_t from = (size_t)begin * GRAIN_ELEMENTS;
    size_t to = (size_t)end * GRAIN_ELEMENTS;
    to = to < job->n ? to : job->n;
    job->cpu->vector.soft_cap(job->value, job->y + from, (uint32_t)(to - from));
}

int moe_cpu_soft_cap(moe_device *device, float cap, float *x, size_t n, moe_error *err)
{
    (void)err;
    moe_cpu_device *cpu = moe_cpu_device_of(device);
    forms_job job = {.cpu = cpu, .y = x, .n = n, .value = cap};
    moe_cpu_for(cpu, (uint32_t)((n + GRAIN_ELEMENTS - 1) / GRAIN_ELEMENTS), 1, soft_cap_range,
                &job);
    return MOE_OK;
}
