/* SPDX-License-Identifier: MIT */
/* Root mean square norms, which also quantise the rows that products read (cuda_rows.c). */
#include "cuda/cuda_internal.h"
#include "cuda/kernels/norm_launch.h"
#include "runtime/base/error.h"

static void norm_and_quantize(moe_cuda_device *cuda, moe_cuda_fused_norm *job)
{
    moe_q8_rows_bind(&job->out, cuda->x_q8_memory, job->n_rows, job->n);
    moe_cuda_norm_quantize(cuda->stream, job);
    moe_cuda_note_rows(cuda, job->y, job->n_rows, job->n);
}

int moe_cuda_op_rms_norm(moe_device *device, const float *x, const float *weight, float *y,
                         uint32_t n_rows, uint32_t n, size_t x_stride, float eps, moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    moe_cuda_fused_norm job = {
        .x = x, .weight = weight, .y = y, .n_rows = n_rows, .n = n, .eps = eps};
    MOE_TRY(moe_cuda_begin(cuda, err));
    if (y != x && x_stride == n && moe_cuda_has_room_for(cuda, n_rows, n)) {
        norm_and_quantize(cuda, &job);
    } else {
        moe_cuda_rms_norm(cuda->stream, x, weight, y, n_rows, n, x_stride, eps);
    }
    return moe_cuda_launched(cuda, "a norm", err);
}

/* A block of the fused kernel reads the outputs of all experts of a row. If these are more floats
 * than this (128 KiB, which one multiprocessor is estimated to read in one to three microseconds),
 * a separate kernel on many multiprocessors adds them up. The bound has not been timed on a GPU. */
#define FUSED_SUM 32768u

int moe_cuda_op_add_norm(moe_device *device, const moe_add_norm *norm, uint32_t n_rows,
                         moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    const moe_combine *combine = norm->combine;
    const bool fits = moe_cuda_has_room_for(cuda, n_rows, norm->n);
    const bool sums = combine != NULL && fits && (size_t)combine->n_ranks * combine->n <= FUSED_SUM;
    moe_cuda_fused_norm job = {.x = norm->a,
                               .added = norm->b,
                               .sum = norm->sum,
                               .weight = norm->weight,
                               .y = norm->y,
                               .n_rows = n_rows,
                               .n = norm->n,
                               .eps = norm->eps};
    MOE_TRY(moe_cuda_begin(cuda, err));
    if (sums) {
        MOE_TRY(moe_cuda_stage_weights(cuda, combine, n_rows, &job.combine, err));
    } else if (combine != NULL) {
        MOE_TRY(moe_cuda_op_combine(device, combine, n_rows, err));
    }
    if (!fits) {
        const size_t n = (size_t)n_rows * norm->n;
        MOE_TRY(moe_cuda_op_add(device, norm->a, norm->b, norm->sum, n, err));
        return moe_cuda_op_rms_norm(device, norm->sum, norm->weight, norm->y, n_rows, norm->n,
                                    norm->n, norm->eps, err);
    }
    norm_and_quantize(cuda, &job);
    return moe_cuda_launched(cuda, "a sum and its norm", err);
}
