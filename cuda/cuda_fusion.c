/* SPDX-License-Identifier: MIT */
/* Operations that become fewer kernels. A norm also quantises its rows, as attention does, for the
 * products that follow, and products of the same rows share them. In a recording an addition waits
 * for the operation that follows: it becomes part of a norm of its sum. Norms and rotary embeddings
 * of heads wait likewise, for the keys to be stored. */
#include "cuda/cuda_internal.h"
#include "cuda/kernels/norm_launch.h"
#include "runtime/base/error.h"

int moe_cuda_begin(moe_cuda_device *cuda, moe_error *err)
{
    moe_cuda_forget_rows(cuda);
    return moe_cuda_begin_reading(cuda, err);
}

int moe_cuda_begin_reading(moe_cuda_device *cuda, moe_error *err)
{
    MOE_TRY(moe_cuda_enter(cuda, err));
    moe_cuda_catch_up(cuda);
    return MOE_OK;
}

static void launch_norms(moe_cuda_device *cuda)
{
    moe_cuda_put_off_heads *h = &cuda->heads;
    for (uint32_t i = 0; i < h->n_norms; i++) {
        const moe_cuda_put_off_norm *norm = &h->norms[i];
        moe_cuda_rms_norm(cuda->stream, norm->x, norm->weight, norm->x, norm->n_rows, norm->n,
                          norm->n, norm->eps);
    }
    h->n_norms = 0;
}

void moe_cuda_catch_up(moe_cuda_device *cuda)
{
    const moe_cuda_addition put_off = cuda->addition;
    const moe_cuda_put_off_sum *sum = &cuda->expert_sum;
    if (sum->combine.y != NULL) {
        moe_cuda_combine(cuda->stream, &sum->combine, sum->n_rows);
    }
    if (put_off.y != NULL) {
        moe_cuda_add(cuda->stream, put_off.a, put_off.b, put_off.y, put_off.n);
    }
    launch_norms(cuda);
    for (uint32_t i = 0; i < cuda->heads.n_ropes; i++) {
        moe_cuda_rope(cuda->stream, &cuda->heads.ropes[i], cuda->heads.rope_rows[i]);
    }
    moe_cuda_drop_put_off(cuda);
}

void moe_cuda_drop_put_off(moe_cuda_device *cuda)
{
    cuda->expert_sum.combine.y = NULL;
    cuda->addition.y = NULL;
    cuda->heads.n_norms = cuda->heads.n_ropes = 0;
}

static bool overlap(const float *a, size_t n_a, const float *b, size_t n_b)
{
    return (uintptr_t)a < (uintptr_t)b + n_b * sizeof *b &&
           (uintptr_t)b < (uintptr_t)a + n_a * sizeof *a;
}

void moe_cuda_sum_experts(moe_cuda_device *cuda, const moe_combine *combine, uint32_t n_rows)
{
    if (cuda->recording.under_way && (size_t)combine->n_ranks * combine->n <= MOE_CUDA_FUSED_SUM) {
        cuda->expert_sum = (moe_cuda_put_off_sum){*combine, n_rows};
    } else {
        moe_cuda_combine(cuda->stream, combine, n_rows);
    }
}

/* Whether an addition is of the sum that has been put off, and of something else. */
static bool adds_sum(const moe_cuda_device *cuda, const float *a, const float *b, const float *y,
                     size_t n)
{
    const moe_combine *c = &cuda->expert_sum.combine;
    const size_t n_rows = cuda->expert_sum.n_rows;
    if (c->y == NULL || cuda->addition.y != NULL || cuda->heads.n_norms + cuda->heads.n_ropes > 0) {
        return false;
    }
    const float *other = b == c->y ? a : b;
    const size_t n_outs = n_rows * c->n_ranks * c->n, n_weights = n_rows * c->n_ranks;
    return (a == c->y || b == c->y) && n == n_rows * c->n && !overlap(other, n, c->y, n) &&
           !overlap(y, n, c->y, n) && !overlap(y, n, c->outs, n_outs) &&
           !overlap(y, n, c->weights, n_weights);
}

int moe_cuda_op_add(moe_device *device, const float *a, const float *b, float *y, size_t n,
                    moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    const bool of_sum = adds_sum(cuda, a, b, y, n);
    MOE_TRY(of_sum ? moe_cuda_begin_heads(cuda, err) : moe_cuda_begin(cuda, err));
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

void moe_cuda_wrote(moe_cuda_device *cuda, const float *x, size_t n)
{
    const moe_cuda_quantized *q = &cuda->quantized;
    if (overlap(x, n, q->x, (size_t)q->n_rows * q->n_in)) {
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

/* Whether products may follow that take the rows of a norm as they are. */
static bool feeds_products(const moe_cuda_device *cuda, const float *x, const float *y,
                           uint32_t n_rows, uint32_t n, size_t x_stride)
{
    return y != x && x_stride == n && moe_cuda_has_room_for(cuda, n_rows, n);
}

/* Makes the addition that has been put off, if it gives what is normed, part of the norm. */
static void take_addition(moe_cuda_device *cuda, size_t n, moe_cuda_fused_norm *job)
{
    const moe_cuda_addition *put_off = &cuda->addition;
    const moe_combine *sum = &cuda->expert_sum.combine;
    if (put_off->y != job->x || put_off->n != n || overlap(put_off->a, n, job->y, n) ||
        overlap(put_off->b, n, job->y, n)) {
        return;
    }
    job->x = put_off->a;
    job->added = put_off->b;
    job->sum = put_off->y;
    if (sum->y != NULL && sum->n == job->n && !overlap(job->y, n, sum->outs, n * sum->n_ranks) &&
        !overlap(job->y, n, sum->weights, (size_t)job->n_rows * sum->n_ranks)) {
        job->x = sum->y == put_off->a ? put_off->b : put_off->a;
        job->added = sum->y;
        job->combine = *sum;
    } else if (sum->y != NULL) {
        moe_cuda_combine(cuda->stream, sum, cuda->expert_sum.n_rows);
    }
    moe_cuda_drop_put_off(cuda);
}

int moe_cuda_begin_heads(moe_cuda_device *cuda, moe_error *err)
{
    moe_cuda_forget_rows(cuda);
    return moe_cuda_enter(cuda, err);
}

static bool has_sums(const moe_cuda_device *cuda)
{
    return cuda->addition.y != NULL || cuda->expert_sum.combine.y != NULL;
}

static int put_off_norm(moe_cuda_device *cuda, const moe_cuda_put_off_norm *norm, moe_error *err)
{
    moe_cuda_put_off_heads *h = &cuda->heads;
    MOE_TRY(moe_cuda_begin_heads(cuda, err));
    if (has_sums(cuda) || h->n_ropes > 0 || h->n_norms == 2) {
        moe_cuda_catch_up(cuda);
    }
    h->norms[h->n_norms++] = *norm;
    return MOE_OK;
}

void moe_cuda_turn(moe_cuda_device *cuda, const moe_rope *rope, uint32_t n_rows)
{
    moe_cuda_put_off_heads *h = &cuda->heads;
    if (!cuda->recording.under_way) {
        moe_cuda_rope(cuda->stream, rope, n_rows);
        return;
    }
    if (has_sums(cuda) || h->n_ropes == 2) {
        moe_cuda_catch_up(cuda);
    }
    h->rope_rows[h->n_ropes] = n_rows;
    h->ropes[h->n_ropes++] = *rope;
}

/* Whether a norm is of the heads that a rotary embedding turns, and these lie side by side. */
static bool norms_heads(const moe_cuda_put_off_norm *norm, const moe_rope *rope, uint32_t n_rows)
{
    return norm->x == rope->x && norm->n == rope->head_stride &&
           rope->row_stride == (size_t)rope->n_head * rope->head_stride &&
           norm->n_rows == n_rows * rope->n_head;
}

static bool norm_heads(const moe_cuda_put_off_heads *h)
{
    return h->n_norms == 2 && h->n_ropes == 2 &&
           norms_heads(&h->norms[0], &h->ropes[0], h->rope_rows[0]) &&
           norms_heads(&h->norms[1], &h->ropes[1], h->rope_rows[1]) &&
           h->norms[0].eps == h->norms[1].eps;
}

/* Whether the embeddings put off turn these keys, and queries with heads of the same size. */
static bool turn_keys(const moe_cuda_put_off_heads *h, const moe_cuda_heads *job, const float *k,
                      size_t k_stride)
{
    const moe_rope *q = &h->ropes[0];
    uint32_t n = job->n_rows;
    if (h->n_ropes != 2 || h->rope_rows[0] != n || h->rope_rows[1] != n || job->k.x != k ||
        job->k.row_stride != k_stride || job->k.n_head != job->layout.n_head_kv ||
        job->k.head_stride != job->dim || q->head_stride != job->dim || q->n_rot > job->dim ||
        job->k.n_rot > job->dim) {
        return false;
    }
    return !overlap(q->x, n * q->row_stride, k, n * k_stride) &&
           !overlap(job->v, n * job->v_stride, k, n * k_stride) &&
           !overlap(job->v, n * job->v_stride, q->x, n * q->row_stride);
}

void moe_cuda_store(moe_cuda_device *cuda, const moe_kv_layout *layout, const moe_cuda_kv_row *rows,
                    uint32_t n_rows, const float *k, size_t k_stride, const float *v,
                    size_t v_stride)
{
    const moe_cuda_put_off_heads *h = &cuda->heads;
    moe_cuda_heads job = {.q = h->ropes[0],
                          .k = h->ropes[1],
                          .dim = layout->k_dim,
                          .layout = *layout,
                          .rows = rows,
                          .v = v,
                          .v_stride = v_stride,
                          .n_rows = n_rows};
    if (!norm_heads(h)) {
        launch_norms(cuda);
    }
    if (!turn_keys(h, &job, k, k_stride)) {
        moe_cuda_catch_up(cuda);
        moe_cuda_kv_store(cuda->stream, layout, rows, n_rows, k, k_stride, v, v_stride);
        return;
    }
    for (uint32_t i = 0; i < h->n_norms; i++) {
        job.weights[i] = h->norms[i].weight;
        job.eps = h->norms[i].eps;
    }
    moe_cuda_drop_put_off(cuda);
    moe_cuda_heads_store(cuda->stream, &job);
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
    if (cuda->recording.under_way && y == x && x_stride == n) {
        return put_off_norm(cuda, &(moe_cuda_put_off_norm){y, weight, n_rows, n, eps}, err);
    }
    MOE_TRY(moe_cuda_begin(cuda, err));
    if (feeds) {
        moe_q8_rows_bind(&job.out, cuda->x_q8_memory, n_rows, n);
        moe_cuda_norm_quantize(cuda->stream, &job);
        moe_cuda_note_rows(cuda, y, n_rows, n);
    } else {
        moe_cuda_rms_norm(cuda->stream, x, weight, y, n_rows, n, x_stride, eps);
    }
    return moe_cuda_launched(cuda, "a norm", err);
}
