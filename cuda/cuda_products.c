/* SPDX-License-Identifier: MIT */
/* Products with weights: linear maps, heads, experts, and the table of embeddings. */
#include <stdlib.h>
#include <string.h>

#include "cuda/cuda_blas.h"
#include "cuda/cuda_internal.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

bool moe_cuda_is_quantized(const moe_weight *weight)
{
    return !moe_dtype_info_of(weight->type)->is_float;
}

int moe_cuda_op_embed(moe_device *device, const moe_weight *table, const int32_t *tokens,
                      uint32_t n_rows, float scale, float *out, moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    const moe_cuda_step *step = &cuda->step;
    int status = moe_cuda_begin(cuda, err);
    if (step->inputs != NULL && tokens == step->inputs->tokens) {
        tokens = step->tokens;
    } else if (status == MOE_OK) {
        void *staged;
        status = moe_cuda_stage(cuda, tokens, n_rows * sizeof *tokens, &staged, err);
        tokens = staged;
    }
    if (status != MOE_OK) {
        return status;
    }
    moe_cuda_embed(cuda->stream, table, tokens, n_rows, scale, out);
    return moe_cuda_launched(cuda, "embedding tokens", err);
}

static int blas_linear(moe_cuda_device *cuda, const moe_linear *linear, const float *x,
                       uint32_t n_rows, moe_error *err)
{
    moe_cuda_blas_product product = {.weight = &linear->weight,
                                     .x = x,
                                     .x_stride = linear->weight.n_in,
                                     .bias = linear->bias,
                                     .out = linear->out,
                                     .out_stride = linear->weight.n_out,
                                     .n_rows = n_rows};
    return moe_cuda_blas_run(cuda->blas, &product, err);
}

/* The number of maps at the start of the list that cuBLAS does not take; 1 if it takes the first.
 */
static uint32_t run_of_maps(const moe_cuda_device *cuda, const moe_linear *linears, uint32_t n,
                            uint32_t n_rows)
{
    const uint32_t most = 32;
    uint32_t run = 0;
    while (run < n && run < most &&
           !moe_cuda_blas_takes(cuda->blas, &linears[run].weight, n_rows)) {
        run++;
    }
    return run > 0 ? run : 1;
}

int moe_cuda_op_linear(moe_device *device, const float *x, uint32_t n_rows, uint32_t n_in,
                       const moe_linear *linears, uint32_t n_linears, moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    int status = moe_cuda_enter(cuda, err);
    if (status != MOE_OK) {
        return status;
    }
    bool quantized = false;
    for (uint32_t i = 0; i < n_linears; i++) {
        quantized |= moe_cuda_is_quantized(&linears[i].weight);
    }
    moe_q8_rows x_q8 = {0};
    if (quantized) {
        moe_cuda_quantize_x(cuda, x, n_rows, n_in, &x_q8);
    }
    for (uint32_t i = 0, n; i < n_linears && status == MOE_OK; i += n) {
        n = run_of_maps(cuda, linears + i, n_linears - i, n_rows);
        if (moe_cuda_blas_takes(cuda->blas, &linears[i].weight, n_rows)) {
            status = blas_linear(cuda, &linears[i], x, n_rows, err);
        } else {
            moe_cuda_linears(cuda->stream, cuda->n_multiprocessors, linears + i, n, x, &x_q8,
                             n_rows);
        }
    }
    for (uint32_t i = 0; i < n_linears; i++) {
        moe_cuda_wrote(cuda, linears[i].out, (size_t)n_rows * linears[i].weight.n_out);
    }
    return status != MOE_OK ? status : moe_cuda_launched(cuda, "linear maps", err);
}

int moe_cuda_op_head_linear(moe_device *device, const moe_head_linear *linear, uint32_t n_rows,
                            moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    MOE_TRY(moe_cuda_begin(cuda, err));
    moe_cuda_head_linear(cuda->stream, cuda->n_multiprocessors, linear, n_rows, cuda->x_q8_memory);
    return moe_cuda_launched(cuda, "a linear map by heads", err);
}

static int need_works(moe_cuda_device *cuda, uint32_t n, moe_error *err)
{
    if (n <= cuda->max_works) {
        return MOE_OK;
    }
    moe_expert_work *works = moe_realloc_array(cuda->works, n, sizeof *works);
    if (works == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for the work of %u experts", n);
    }
    cuda->works = works;
    cuda->max_works = n;
    return MOE_OK;
}

/* The works' x_scales, one after the other; NULL if they have none. */
static const float *put_scales(moe_cuda_parcel *parcel, const moe_expert_work *works,
                               uint32_t n_works, uint32_t n_inner)
{
    if (works[0].x_scales == NULL) {
        return NULL;
    }
    void *place;
    const float *scales = moe_cuda_parcel_put(parcel, NULL, n_inner, sizeof(float), &place);
    float *next = place;
    for (uint32_t w = 0; w < n_works; w++) {
        memcpy(next, works[w].x_scales, works[w].n_rows * sizeof *next);
        next += works[w].n_rows;
    }
    return scales;
}

/* Puts the works with their index lists on the device, with room for the list of products. */
static int stage_works(moe_cuda_device *cuda, const moe_expert_work *works, uint32_t n_works,
                       moe_cuda_experts *experts, moe_cuda_parcel *parcel, moe_error *err)
{
    size_t bytes = moe_cuda_parcel_room(3 * (size_t)n_works, sizeof(moe_cuda_product));
    uint32_t n_inner = 0;
    for (uint32_t w = 0; w < n_works; w++) {
        bytes += 2 * moe_cuda_parcel_room(works[w].n_rows, sizeof(uint32_t));
        n_inner += works[w].n_rows;
    }
    bytes += works[0].x_scales != NULL ? moe_cuda_parcel_room(n_inner, sizeof(float)) : 0;
    MOE_TRY(need_works(cuda, n_works, err));
    MOE_TRY(moe_cuda_parcel_begin(cuda, bytes, parcel, err));
    void *list;
    experts->list =
        moe_cuda_parcel_put(parcel, NULL, 3 * (size_t)n_works, sizeof(moe_cuda_product), &list);
    experts->host_list = list;
    for (uint32_t w = 0; w < n_works; w++) {
        moe_expert_work *work = &cuda->works[w];
        *work = works[w];
        if (work->x_index != NULL) {
            work->x_index =
                moe_cuda_parcel_put(parcel, work->x_index, work->n_rows, sizeof(uint32_t), NULL);
        }
        if (work->out_index != NULL) {
            work->out_index =
                moe_cuda_parcel_put(parcel, work->out_index, work->n_rows, sizeof(uint32_t), NULL);
        }
    }
    experts->works = cuda->works;
    experts->n_works = n_works;
    experts->x_scales = put_scales(parcel, works, n_works, n_inner);
    return MOE_OK;
}

/* Whether this is a dense network that cuBLAS takes: all rows pass through it, in order. */
static bool is_dense_blas(const moe_cuda_device *cuda, const moe_expert_work *works,
                          uint32_t n_works)
{
    return n_works == 1 && works->x_index == NULL && works->out_index == NULL &&
           works->x_scales == NULL &&
           moe_cuda_blas_takes(cuda->blas, &works->gate, works->n_rows) &&
           moe_cuda_blas_takes(cuda->blas, &works->up, works->n_rows) &&
           moe_cuda_blas_takes(cuda->blas, &works->down, works->n_rows);
}

static int run_dense_blas(moe_cuda_device *cuda, const float *x, const moe_expert_work *work,
                          float *out, size_t out_stride, moe_error *err)
{
    uint32_t n_ff = work->gate.n_out;
    moe_linear gate = {work->gate, work->gate_bias, cuda->ff_gate};
    moe_linear up = {work->up, work->up_bias, cuda->ff_up};
    moe_cuda_blas_product down = {.weight = &work->down,
                                  .bias = work->down_bias,
                                  .x = cuda->ff_gate,
                                  .x_stride = n_ff,
                                  .out = out,
                                  .out_stride = out_stride,
                                  .n_rows = work->n_rows};
    MOE_TRY(blas_linear(cuda, &gate, x, work->n_rows, err));
    MOE_TRY(blas_linear(cuda, &up, x, work->n_rows, err));
    moe_cuda_activate(cuda->stream, &work->activation, NULL, cuda->ff_gate, cuda->ff_up,
                      cuda->ff_gate, work->n_rows, n_ff);
    MOE_TRY(moe_cuda_blas_run(cuda->blas, &down, err));
    return moe_cuda_launched(cuda, "a dense network", err);
}

int moe_cuda_op_experts(moe_device *device, const float *x, uint32_t n_x_rows, uint32_t n_in,
                        const moe_expert_work *works, uint32_t n_works, float *out,
                        size_t out_stride, moe_error *err)
{
    moe_cuda_device *cuda = moe_cuda_device_of(device);
    int status = moe_cuda_enter(cuda, err);
    if (status != MOE_OK || n_works == 0) {
        return status;
    }
    if (is_dense_blas(cuda, works, n_works)) {
        moe_cuda_forget_rows(cuda);
        return run_dense_blas(cuda, x, works, out, out_stride, err);
    }
    moe_cuda_experts experts = {.x = x,
                                .n_in = n_in,
                                .gate = cuda->ff_gate,
                                .up = cuda->ff_up,
                                .h_q8_memory = cuda->h_q8_memory,
                                .out = out,
                                .out_stride = out_stride,
                                .n_multiprocessors = cuda->n_multiprocessors};
    moe_cuda_parcel parcel;
    MOE_TRY(stage_works(cuda, works, n_works, &experts, &parcel, err));
    moe_cuda_experts_list(&experts);
    MOE_TRY(moe_cuda_parcel_send(cuda, &parcel, err));
    bool quantized = false;
    for (uint32_t w = 0; w < n_works; w++) {
        quantized |= moe_cuda_is_quantized(&works[w].gate) || moe_cuda_is_quantized(&works[w].up);
    }
    if (quantized) {
        moe_cuda_quantize_x(cuda, x, n_x_rows, n_in, &experts.x_q8);
    }
    moe_cuda_experts_run(cuda->stream, &experts);
    moe_cuda_forget_rows(cuda); /* the experts' kernels may have overwritten x */
    status = moe_cuda_launched(cuda, "experts", err);
    return status != MOE_OK ? status : moe_cuda_note_use(cuda, works, n_works, err);
}
