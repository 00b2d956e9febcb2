/* SPDX-License-Identifier: MIT */
/* Feed-forward networks of many experts at once, in three steps that all workers share:
 *
 *   gate and up products of every (expert, slice of rows) -> silu(gate) * up, quantised -> down
 *
 * Inner rows are numbered through all works: work w owns [first[w], first[w] + n_rows). */
#include <stdlib.h>

#include "cpu/cpu_internal.h"
#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

typedef struct experts_job {
    moe_cpu_device *cpu;
    const float *x;
    uint32_t n_in, n_ff;
    const moe_q8_rows *x_q8;
    moe_q8_rows *h_q8;
    const moe_expert_work *works;
    uint32_t n_works;
    uint32_t *first;     /* [n_works + 1] */
    uint32_t slices_in;  /* of the gate, and as many of the up matrix */
    uint32_t slices_out; /* of the down matrix */
    uint32_t slice_rows_in, slice_rows_out;
    bool down_is_float;
    float *out;
    size_t out_stride;
} experts_job;

static void gate_up_range(void *context, uint32_t begin, uint32_t end)
{
    const experts_job *job = context;
    for (uint32_t task = begin; task < end; task++) {
        uint32_t w = task / (2 * job->slices_in);
        uint32_t slice = task % (2 * job->slices_in);
        bool up = slice >= job->slices_in;
        const moe_expert_work *work = &job->works[w];
        uint32_t first = (up ? slice - job->slices_in : slice) * job->slice_rows_in;
        uint32_t n =
            job->n_ff - first < job->slice_rows_in ? job->n_ff - first : job->slice_rows_in;
        float *inner = up ? job->cpu->ff_up : job->cpu->ff_gate;
        moe_matmul_args args = {.n_rows = work->n_rows,
                                .x_q8 = job->x_q8,
                                .x = job->x,
                                .x_stride = job->n_in,
                                .x_index = work->x_index,
                                .out = inner + (size_t)job->first[w] * job->n_ff,
                                .out_stride = job->n_ff};
        moe_cpu_matmul_slice(job->cpu, up ? &work->up : &work->gate, first, n, args);
    }
}

static void activate_range(void *context, uint32_t begin, uint32_t end)
{
    const experts_job *job = context;
    moe_cpu_device *cpu = job->cpu;
    for (uint32_t r = begin; r < end; r++) {
        float *gate = cpu->ff_gate + (size_t)r * job->n_ff;
        cpu->vector.silu_mul(gate, cpu->ff_up + (size_t)r * job->n_ff, gate, job->n_ff);
        if (!job->down_is_float) {
            cpu->matmul.quantize_rows(gate, job->n_ff, 1, job->n_ff, job->h_q8, r);
        }
    }
}

static void down_range(void *context, uint32_t begin, uint32_t end)
{
    const experts_job *job = context;
    for (uint32_t task = begin; task < end; task++) {
        uint32_t w = task / job->slices_out;
        uint32_t first = task % job->slices_out * job->slice_rows_out;
        const moe_expert_work *work = &job->works[w];
        uint32_t n_out = work->down.n_out;
        uint32_t n = n_out - first < job->slice_rows_out ? n_out - first : job->slice_rows_out;
        moe_q8_rows h_q8 = moe_cpu_rows_from(job->h_q8, job->first[w]);
        moe_matmul_args args = {.n_rows = work->n_rows,
                                .x_q8 = &h_q8,
                                .x = job->cpu->ff_gate + (size_t)job->first[w] * job->n_ff,
                                .x_stride = job->n_ff,
                                .out_index = work->out_index,
                                .out = job->out,
                                .out_stride = job->out_stride};
        moe_cpu_matmul_slice(job->cpu, &work->down, first, n, args);
    }
}

/* All works of a call are experts of one layer: their shapes and types are the first one's. */
static void plan_slices(experts_job *job)
{
    const moe_expert_work *work = &job->works[0];
    job->n_ff = work->gate.n_out;
    uint64_t bytes_in = (uint64_t)job->n_works * 2 * job->n_ff * work->gate.row_bytes;
    uint64_t bytes_out = (uint64_t)job->n_works * work->down.n_out * work->down.row_bytes;
    job->slice_rows_in = moe_cpu_slice_rows(job->cpu, &work->gate, bytes_in);
    job->slice_rows_out = moe_cpu_slice_rows(job->cpu, &work->down, bytes_out);
    job->slices_in = (job->n_ff + job->slice_rows_in - 1) / job->slice_rows_in;
    job->slices_out = (work->down.n_out + job->slice_rows_out - 1) / job->slice_rows_out;
    job->down_is_float = moe_dtype_info_of(work->down.type)->is_float;
}

int moe_cpu_experts(moe_device *device, const float *x, uint32_t n_x_rows, uint32_t n_in,
                    const moe_expert_work *works, uint32_t n_works, float *out, size_t out_stride,
                    moe_error *err)
{
    moe_cpu_device *cpu = moe_cpu_device_of(device);
    if (n_works == 0) {
        return MOE_OK;
    }
    uint32_t *first = moe_calloc(n_works + 1, sizeof *first);
    if (first == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for the rows of %u experts", n_works);
    }
    for (uint32_t w = 0; w < n_works; w++) {
        first[w + 1] = first[w] + works[w].n_rows;
    }
    moe_q8_rows x_q8 = {0};
    moe_q8_rows h_q8 = {0};
    experts_job job = {.cpu = cpu,
                       .x = x,
                       .n_in = n_in,
                       .x_q8 = &x_q8,
                       .h_q8 = &h_q8,
                       .works = works,
                       .n_works = n_works,
                       .first = first,
                       .out = out,
                       .out_stride = out_stride};
    plan_slices(&job);
    if (!moe_dtype_info_of(works[0].gate.type)->is_float ||
        !moe_dtype_info_of(works[0].up.type)->is_float) {
        moe_cpu_quantize(cpu, x, n_in, n_x_rows, n_in, cpu->x_q8_memory, &x_q8);
    }
    if (!job.down_is_float) {
        moe_q8_rows_bind(&h_q8, cpu->h_q8_memory, first[n_works], job.n_ff);
    }
    moe_cpu_for(cpu, n_works * 2 * job.slices_in, 1, gate_up_range, &job);
    moe_cpu_for(cpu, first[n_works], 1, activate_range, &job);
    moe_cpu_for(cpu, n_works * job.slices_out, 1, down_range, &job);
    free(first);
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
            job->cpu->vector.axpy(c->weights[rank], c->outs + rank * c->n, y, c->n);
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
