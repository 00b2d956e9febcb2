/* SPDX-License-Identifier: MIT */
/* Operations that become fewer kernels. A norm also quantises its rows, for the products that
 * follow, and products of the same rows share them. In a recording an addition waits for the
 * operation that follows: it becomes part of a norm of its sum. */
#include "cuda/cuda_internal.h"
#include "cuda/kernels/norm_launch.h"

int moe_cuda_begin(moe_cuda_device *cuda, moe_error *err)
{
    moe_cuda_forget_rows(cuda);
    return moe_cuda_begin_reading(cuda, err);
}

int moe_cuda_begin_reading(moe_cuda_device *cuda, moe_error *err)
{
    int status = moe_cuda_enter(cuda, err);
    if (status == MOE_OK) {
        moe_cuda_catch_up(cuda);
    }
    return status;
}

void moe_cuda_catch_up(moe_cuda_device *cuda)
{
    const moe_cuda_addition put_off = cuda->addition;
    if (put_off.y != NULL) {
        moe_cuda_drop_put_off(cuda);
        moe_cuda_add(cuda->stream, put_off.a, put_off.b, put_off.y, put_off.n);
    }
}

void moe_cuda_drop_put_off(moe_cuda_device *cuda)
{
    cuda->addition.y = NULL;
}

int moe_cuda_op_add(moe_device *device, const float *a, const float *b, float *y, size_t n,
                    moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    int status = moe_cuda_begin(cuda, err);
    if (status != MOE_OK) {
        return status;
    }
    if (cuda->recording.under_way) {
        cuda->addition = (moe_cuda_addition){.a = a, .b = b, .y = y, .n = n};
    } else {
        moe_cuda_add(cuda->stream, a, b, y, n);
    }
    return moe_cuda_launched(cuda, "an addition", err);
}

void moe_cuda_forget_rows(moe_cuda_device *cuda)
{
    cuda->quantized.x = NULL;
}

static bool overlap(const float *a, size_t n_a, const float *b, size_t n_b)
{
    return (uintptr_t)a < (uintptr_t)b + n_b * sizeof *b &&
           (uintptr_t)b < (uintptr_t)a + n_a * sizeof *a;
}

void moe_cuda_wrote(moe_cuda_device *cuda, const float *x, size_t n)
{
    const moe_cuda_quantized *q = &cuda->quantized;
    if (overlap(x, n, q->x, (size_t)q->n_rows * q->n_in)) {
        moe_cuda_forget_rows(cuda);
    }
}

static void note_rows(moe_cuda_device *cuda, const float *x, uint32_t n_rows, uint32_t n_in)
{
    cuda->quantized = (moe_cuda_quantized){.x = x, .n_rows = n_rows, .n_in = n_in};
}

void moe_cuda_quantize_x(moe_cuda_device *cuda, const float *x, uint32_t n_rows, uint32_t n_in,
                         moe_q8_rows *rows)
{
    const moe_cuda_quantized *q = &cuda->quantized;
    moe_q8_rows_bind(rows, cuda->x_q8_memory, n_rows, n_in);
    if (x != NULL && q->x == x && q->n_rows == n_rows && q->n_in == n_in) {
        return;
    }
    moe_cuda_quantize job = {.x = x, .x_stride = n_in, .n_rows = n_rows, .out = *rows};
    moe_cuda_quantize_rows(cuda->stream, &job);
    note_rows(cuda, x, n_rows, n_in);
}

/* Whether products may follow that take the rows of a norm as they are. */
static bool feeds_products(const moe_cuda_device *cuda, const float *x, const float *y,
                           uint32_t n_rows, uint32_t n, size_t x_stride)
{
    return y != x && x_stride == n && n > 0 && n_rows > 0 && n % MOE_Q8_BLOCK == 0 &&
           moe_q8_rows_bytes(n_rows, n) <= cuda->x_q8_bytes;
}

/* Makes the addition that has been put off, if it gives what is normed, part of the norm. */
static void take_addition(moe_cuda_device *cuda, size_t n, moe_cuda_fused_norm *job)
{
    const moe_cuda_addition *put_off = &cuda->addition;
    if (put_off->y == job->x && put_off->n == n && !overlap(put_off->a, n, job->y, n) &&
        !overlap(put_off->b, n, job->y, n)) {
        job->x = put_off->a;
        job->added = put_off->b;
        job->sum = put_off->y;
        moe_cuda_drop_put_off(cuda);
    }
}

int moe_cuda_op_rms_norm(moe_device *device, const float *x, const float *weight, float *y,
                         uint32_t n_rows, uint32_t n, size_t x_stride, float eps, moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    const bool feeds = feeds_products(cuda, x, y, n_rows, n, x_stride);
    moe_cuda_fused_norm job = {
        .x = x, .weight = weight, .y = y, .n_rows = n_rows, .n = n, .eps = eps};
    if (feeds) {
        take_addition(cuda, (size_t)n_rows * n, &job);
    }
    int status = moe_cuda_begin(cuda, err);
    if (status != MOE_OK) {
        return status;
    }
    if (feeds) {
        moe_q8_rows_bind(&job.out, cuda->x_q8_memory, n_rows, n);
        moe_cuda_norm_quantize(cuda->stream, &job);
        note_rows(cuda, y, n_rows, n);
    } else {
        moe_cuda_rms_norm(cuda->stream, x, weight, y, n_rows, n, x_stride, eps);
    }
    return moe_cuda_launched(cuda, "a norm", err);
}
