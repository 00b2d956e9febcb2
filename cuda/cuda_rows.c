/* SPDX-License-Identifier: MIT */
/* Remembers which rows x_q8_memory holds. Norms and attention also quantise the rows that they
 * write, and all products of these rows share the quantised form. The program does not say which
 * rows are quantised, because between a norm and the experts that read its rows the host may route,
 * predict, compute other things, or bring rows. */
#include "cuda/cuda_internal.h"

int moe_cuda_begin(moe_cuda_device *cuda, moe_error *err)
{
    moe_cuda_forget_rows(cuda);
    return moe_cuda_enter(cuda, err);
}

void moe_cuda_forget_rows(moe_cuda_device *cuda)
{
    cuda->quantized.x = NULL;
}

/* Whether the n floats from `from` on and the m floats from `other` on overlap. */
static bool overlap(const float *from, size_t n, const float *other, size_t m)
{
    const uintptr_t a = (uintptr_t)from, b = (uintptr_t)other;
    return a < b + m * sizeof *other && b < a + n * sizeof *from;
}

void moe_cuda_wrote(moe_cuda_device *cuda, const float *x, size_t n)
{
    const moe_cuda_quantized *q = &cuda->quantized;
    if (q->x != NULL && overlap(q->x, (size_t)q->n_rows * q->n_in, x, n)) {
        moe_cuda_forget_rows(cuda);
    }
}

void moe_cuda_note_rows(moe_cuda_device *cuda, const float *x, uint32_t n_rows, uint32_t n_in)
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
    moe_cuda_note_rows(cuda, x, n_rows, n_in);
}

bool moe_cuda_has_room_for(const moe_cuda_device *cuda, uint32_t n_rows, uint32_t n)
{
    return n_rows > 0 && n > 0 && n % MOE_Q8_BLOCK == 0 &&
           moe_q8_rows_bytes(n_rows, n) <= cuda->x_q8_bytes;
}
