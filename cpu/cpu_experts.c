/* SPDX-License-Identifier: MIT */
/* Feed-forward networks of many experts at once, in three steps that all workers share:
 *
 *  gate and up products of every (expert, slice of rows) -> silu(gate) * up, quantised -> down
 *
 * In networks without a gate, gate and up are one matrix; its product is computed once.
 *
 * Inner rows (rows of gate and up products) are numbered consecutively over all works. */
#include <stdlib.h>
#include <string.h>

#include "cpu/cpu_internal.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"
#include "runtime/base/moe_assert.h"

typedef struct activate_job {
    moe_cpu_device *cpu;
    const moe_activation *activation;
    const float *scales; /* [n_inner] or NULL: a factor of each inner row's gate and up */
    uint32_t n_ff;
    bool joined;       /* gate and up are one matrix */
    moe_q8_rows *h_q8; /* NULL: the down matrices are floats */
} activate_job;

/* Writes the activated row over gate. */
static void activate_row(const activate_job *job, uint32_t row, float *gate, float *up)
{
    const moe_vector_kernels *vector = &job->cpu->vector;
    const moe_activation *a = job->activation;
    if (job->scales != NULL) {
        vector->scale(job->scales[row], gate, job->n_ff);
    }
    if (job->scales != NULL && !job->joined) {
        vector->scale(job->scales[row], up, job->n_ff);
    }
    switch (a->kind) {
    case MOE_ACTIVATION_SILU:
        vector->silu_mul(gate, up, gate, job->n_ff);
        break;
    case MOE_ACTIVATION_SWIGLU_CLAMPED:
        vector->swiglu_clamped(gate, up, gate, job->n_ff, a->alpha, a->limit);
        break;
    case MOE_ACTIVATION_SILU_LIMITED:
        vector->silu_limited(gate, up, gate, job->n_ff, a->limit);
        break;
    case MOE_ACTIVATION_SILU_CLAMPED:
        vector->silu_clamped(gate, up, gate, job->n_ff, a->limit);
        break;
    case MOE_ACTIVATION_GELU:
        vector->gelu_mul(gate, up, gate, job->n_ff);
        break;
    case MOE_ACTIVATION_RELU:
        vector->relu_mul(gate, up, gate, job->n_ff);
        break;
    case MOE_ACTIVATION_SITU:
        vector->situ_mul(gate, up, gate, job->n_ff, a->alpha, a->limit);
        break;
    }
}

static void activate_range(void *context, uint32_t begin, uint32_t end)
{
    const activate_job *job = context;
    moe_cpu_device *cpu = job->cpu;
    for (uint32_t r = begin; r < end; r++) {
        float *gate = cpu->ff_gate + (size_t)r * job->n_ff;
        float *up = job->joined ? gate : cpu->ff_up + (size_t)r * job->n_ff;
        activate_row(job, r, gate, up);
        if (job->h_q8 != NULL) {
            cpu->matmul.quantize_rows(gate, job->n_ff, 1, job->n_ff, job->h_q8, r);
        }
    }
}

static bool is_joined(const moe_expert_work *work)
{
    return work->gate.data == work->up.data;
}

/* Lists the products of each work (gate and up, or the one matrix that is both), and adds their
 * number to *n_products. Returns the number of inner rows of all works. */
static uint32_t list_gate_up(const moe_cpu_device *cpu, const float *x, uint32_t n_in,
                             const moe_q8_rows *x_q8, const moe_expert_work *works,
                             uint32_t n_works, moe_cpu_product *products, uint32_t *n_products)
{
    uint32_t n_ff = works[0].gate.n_out;
    uint32_t first = 0;
    for (uint32_t w = 0; w < n_works; w++) {
        MOE_ASSERT(works[w].gate.n_in == n_in && works[w].up.n_in == n_in);
        MOE_ASSERT(works[w].gate.n_out == n_ff && works[w].up.n_out == n_ff);
        MOE_ASSERT(works[w].down.n_in == n_ff && works[w].n_rows > 0);
        MOE_ASSERT(is_joined(&works[w]) == is_joined(&works[0]));
        moe_cpu_product *gate = &products[(*n_products)++];
        gate->weight = works[w].gate;
        gate->x_q8 = *x_q8;
        gate->args = (moe_matmul_args){.n_rows = works[w].n_rows,
                                       .x = x,
                                       .x_stride = n_in,
                                       .x_index = works[w].x_index,
                                       .out = cpu->ff_gate + (size_t)first * n_ff,
                                       .out_stride = n_ff};
        gate->bias = works[w].gate_bias;
        if (!is_joined(&works[w])) {
            moe_cpu_product *up = &products[(*n_products)++];
            *up = *gate;
            up->bias = works[w].up_bias;
            up->weight = works[w].up;
            up->args.out = cpu->ff_up + (size_t)first * n_ff;
        }
        first += works[w].n_rows;
    }
    return first;
}

static void list_down(const moe_cpu_device *cpu, uint32_t n_ff, const moe_q8_rows *h_q8,
                      const moe_expert_work *works, uint32_t n_works, float *out, size_t out_stride,
                      moe_cpu_product *products)
{
    uint32_t first = 0;
    for (uint32_t w = 0; w < n_works; w++) {
        moe_cpu_product *down = &products[w];
        down->weight = works[w].down;
        down->bias = works[w].down_bias;
        down->x_q8 = h_q8->q != NULL ? moe_cpu_rows_from(h_q8, first) : *h_q8;
        down->args = (moe_matmul_args){.n_rows = works[w].n_rows,
                                       .x = cpu->ff_gate + (size_t)first * n_ff,
                                       .x_stride = n_ff,
                                       .out_index = works[w].out_index,
                                       .out = out,
                                       .out_stride = out_stride};
        first += works[w].n_rows;
    }
}

/* Collects the works' x_scales in one array; NULL, and MOE_OK, if they have none. */
static int collect_scales(const moe_expert_work *works, uint32_t n_works, uint32_t n_inner,
                          float **scales, moe_error *err)
{
    *scales = NULL;
    if (works[0].x_scales == NULL) {
        return MOE_OK;
    }
    float *next = *scales = moe_calloc(n_inner, sizeof *next);
    if (next == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for the scales of %u rows", n_inner);
    }
    for (uint32_t w = 0; w < n_works; w++) {
        memcpy(next, works[w].x_scales, works[w].n_rows * sizeof *next);
        next += works[w].n_rows;
    }
    return MOE_OK;
}

static bool is_quantized(const moe_weight *weight)
{
    return !moe_dtype_info_of(weight->type)->is_float;
}

/* All works of a call are experts of one layer, so the first one's shapes and types hold for all.
 */
int moe_cpu_experts(moe_device *device, const float *x, uint32_t n_x_rows, uint32_t n_in,
                    const moe_expert_work *works, uint32_t n_works, float *out, size_t out_stride,
                    moe_error *err)
{
    moe_cpu_device *cpu = moe_cpu_device_of(device);
    if (n_works == 0) {
        return MOE_OK;
    }
    moe_cpu_product *products = moe_calloc(2 * (size_t)n_works, sizeof *products);
    if (products == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for the products of %u experts", n_works);
    }
    moe_q8_rows x_q8 = {0};
    moe_q8_rows h_q8 = {0};
    if (is_quantized(&works[0].gate) || is_quantized(&works[0].up)) {
        moe_cpu_quantize(cpu, x, n_in, n_x_rows, n_in, cpu->x_q8_memory, &x_q8);
    }
    uint32_t n_ff = works[0].gate.n_out;
    uint32_t n_products = 0;
    uint32_t n_inner = list_gate_up(cpu, x, n_in, &x_q8, works, n_works, products, &n_products);
    float *scales;
    int status = collect_scales(works, n_works, n_inner, &scales, err);
    if (status != MOE_OK) {
        free(products);
        return status;
    }
    moe_cpu_run_products(cpu, products, n_products);
    bool quantize = is_quantized(&works[0].down);
    if (quantize) {
        moe_q8_rows_bind(&h_q8, cpu->h_q8_memory, n_inner, n_ff);
    }
    activate_job activate = {cpu,  &works[0].activation, scales,
                             n_ff, is_joined(&works[0]), quantize ? &h_q8 : NULL};
    moe_cpu_for(cpu, n_inner, 1, activate_range, &activate);
    list_down(cpu, n_ff, &h_q8, works, n_works, out, out_stride, products);
    moe_cpu_run_products(cpu, products, n_works);
    free(products);
    free(scales);
    return MOE_OK;
}

typedef struct combine_job {
    moe_cpu_device *cpu;
    const moe_combine *combine;
} combine_job;

static void combine_range(void *context, uint32_t begin, uint32_t end)
{
    const combine_job *job = context;
    const moe_combine *c = job->combine;
    for (uint32_t r = begin; r < end; r++) {
        float *y = c->y + (size_t)r * c->n;
        for (uint32_t i = 0; i < c->n; i++) {
            y[i] = 0.0f;
        }
        for (uint32_t k = 0; k < c->n_ranks; k++) {
            size_t rank = (size_t)r * c->n_ranks + k;
            if (c->weights[rank] != 0.0f) {
                job->cpu->vector.axpy(c->weights[rank], c->outs + rank * c->n, y, c->n);
            }
        }
    }
}

int moe_cpu_combine(moe_device *device, const moe_combine *combine, uint32_t n_rows, moe_error *err)
{
    (void)err;
    moe_cpu_device *cpu = moe_cpu_device_of(device);
    combine_job job = {cpu, combine};
    moe_cpu_for(cpu, n_rows, 4, combine_range, &job);
    return MOE_OK;
}
