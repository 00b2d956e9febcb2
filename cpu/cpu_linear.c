/* SPDX-License-Identifier: MIT */
/* Products of weights with rows. Weight rows are cut into slices; workers take slices as they come,
 * and each output is computed whole by one worker, so who takes what never shows in the result. */
#include <cblas.h>

#include "cpu/cpu_internal.h"

/* A slice streams so many weight bytes: each one starts the prefetchers anew, so long ones are fast
 * (decode from 96 KiB slices ran at 43 tokens/s where 512 KiB ones gave 51), but the last ones of a
 * call have to finish together. */
#define MIN_SLICE_BYTES   (192u << 10)
#define MAX_SLICE_BYTES   (1u << 20)
#define SLICES_PER_WORKER 12u
#define SLICE_ALIGN       16u
/* Below this many multiply-adds a call is done by the caller alone: waking the team costs more. */
#define ALONE_MACS (1u << 15)
/* Rows from which OpenBLAS pays on float weights. */
#define BLAS_MIN_ROWS 16u

typedef struct quantize_job {
    moe_cpu_device *cpu;
    const float *x;
    size_t x_stride;
    moe_q8_rows *rows;
} quantize_job;

static void quantize_range(void *context, uint32_t begin, uint32_t end)
{
    const quantize_job *job = context;
    job->cpu->matmul.quantize_rows(job->x + begin * job->x_stride, job->x_stride, end - begin,
                                   job->rows->n_in, job->rows, begin);
}

void moe_cpu_quantize(moe_cpu_device *cpu, const float *x, size_t x_stride, uint32_t n_rows,
                      uint32_t n_in, void *memory, moe_q8_rows *rows)
{
    moe_q8_rows_bind(rows, memory, n_rows, n_in);
    quantize_job job = {cpu, x, x_stride, rows};
    moe_cpu_for(cpu, n_rows, 4, quantize_range, &job);
}

uint32_t moe_cpu_slice_rows(const moe_cpu_device *cpu, const moe_weight *weight,
                            uint64_t call_bytes)
{
    uint64_t bytes = call_bytes / (SLICES_PER_WORKER * moe_team_size(cpu->team));
    bytes = bytes < MAX_SLICE_BYTES ? bytes : MAX_SLICE_BYTES;
    bytes = bytes > MIN_SLICE_BYTES ? bytes : MIN_SLICE_BYTES;
    uint32_t rows = (uint32_t)(bytes / weight->row_bytes) / SLICE_ALIGN * SLICE_ALIGN;
    return rows < SLICE_ALIGN ? SLICE_ALIGN : rows;
}

bool moe_cpu_blas_matmul(moe_cpu_device *cpu, const moe_matmul_args *args)
{
    if (!cpu->blas_prefill || args->type != MOE_DTYPE_F32 || args->n_rows < BLAS_MIN_ROWS ||
        args->x_index != NULL || args->out_index != NULL) {
        return false;
    }
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)args->n_rows, (int)args->n_out,
                (int)args->n_in, 1.0f, args->x, (int)args->x_stride, args->weights, (int)args->n_in,
                0.0f, args->out, (int)args->out_stride);
    return true;
}

void moe_cpu_matmul_slice(moe_cpu_device *cpu, const moe_weight *weight, uint32_t first, uint32_t n,
                          moe_matmul_args args)
{
    args.type = weight->type;
    args.weights = (const uint8_t *)weight->data + (size_t)first * weight->row_bytes;
    args.row_bytes = weight->row_bytes;
    args.n_in = weight->n_in;
    args.n_out = n;
    args.out += first;
    if (!moe_cpu_blas_matmul(cpu, &args)) {
        cpu->matmul.matmul[weight->type](&args);
    }
}

typedef struct linear_job {
    moe_cpu_device *cpu;
    const float *x;
    uint32_t n_rows, n_in;
    const moe_q8_rows *x_q8;
    const moe_linear *linears;
    uint32_t n_linears;
    uint64_t call_bytes; /* of all weights */
} linear_job;

static uint32_t n_slices(const linear_job *job, const moe_weight *weight)
{
    uint32_t rows = moe_cpu_slice_rows(job->cpu, weight, job->call_bytes);
    return (weight->n_out + rows - 1) / rows;
}

static void linear_slice(const linear_job *job, const moe_linear *linear, uint32_t slice)
{
    const moe_weight *weight = &linear->weight;
    uint32_t rows = moe_cpu_slice_rows(job->cpu, weight, job->call_bytes);
    uint32_t first = slice * rows;
    uint32_t n = weight->n_out - first < rows ? weight->n_out - first : rows;
    moe_matmul_args args = {.n_rows = job->n_rows,
                            .x_q8 = job->x_q8,
                            .x = job->x,
                            .x_stride = job->n_in,
                            .out = linear->out,
                            .out_stride = weight->n_out};
    moe_cpu_matmul_slice(job->cpu, weight, first, n, args);
    if (linear->bias != NULL) {
        for (uint32_t r = 0; r < job->n_rows; r++) {
            float *out = linear->out + (size_t)r * weight->n_out + first;
            job->cpu->vector.add(out, linear->bias + first, out, n);
        }
    }
}

static void linear_range(void *context, uint32_t begin, uint32_t end)
{
    const linear_job *job = context;
    for (uint32_t task = begin; task < end; task++) {
        uint32_t slice = task;
        uint32_t i = 0;
        while (slice >= n_slices(job, &job->linears[i].weight)) {
            slice -= n_slices(job, &job->linears[i].weight);
            i++;
        }
        linear_slice(job, &job->linears[i], slice);
    }
}

int moe_cpu_linear(moe_device *device, const float *x, uint32_t n_rows, uint32_t n_in,
                   const moe_linear *linears, uint32_t n_linears, moe_error *err)
{
    (void)err;
    moe_cpu_device *cpu = moe_cpu_device_of(device);
    moe_q8_rows x_q8 = {0};
    linear_job job = {cpu, x, n_rows, n_in, &x_q8, linears, n_linears, 0};
    bool quantized = false;
    uint64_t macs = 0;
    for (uint32_t i = 0; i < n_linears; i++) {
        const moe_weight *weight = &linears[i].weight;
        quantized |= !moe_dtype_info_of(weight->type)->is_float;
        macs += (uint64_t)weight->n_out * n_in * n_rows;
        job.call_bytes += weight->n_out * weight->row_bytes;
    }
    uint32_t n_tasks = 0;
    for (uint32_t i = 0; i < n_linears; i++) {
        n_tasks += n_slices(&job, &linears[i].weight);
    }
    if (quantized) {
        moe_cpu_quantize(cpu, x, n_in, n_rows, n_in, cpu->x_q8_memory, &x_q8);
    }
    moe_cpu_for(cpu, n_tasks, macs < ALONE_MACS ? n_tasks : 1, linear_range, &job);
    return MOE_OK;
}

typedef struct head_linear_job {
    moe_cpu_device *cpu;
    const moe_head_linear *linear;
    uint32_t n_rows;
    bool quantized;
    moe_q8_rows x_q8; /* rows in the order [head][row] */
} head_linear_job;

static void head_quantize_range(void *context, uint32_t begin, uint32_t end)
{
    head_linear_job *job = context;
    const moe_head_linear *linear = job->linear;
    for (uint32_t h = begin; h < end; h++) {
        job->cpu->matmul.quantize_rows(linear->x + h * linear->x_head_stride, linear->x_row_stride,
                                       job->n_rows, linear->weight.n_in, &job->x_q8,
                                       h * job->n_rows);
    }
}

static void head_linear_range(void *context, uint32_t begin, uint32_t end)
{
    head_linear_job *job = context;
    const moe_head_linear *linear = job->linear;
    uint32_t n_out = linear->weight.n_out / linear->n_head;
    for (uint32_t h = begin; h < end; h++) {
        moe_q8_rows x_q8 = {0};
        if (job->quantized) {
            x_q8 = moe_cpu_rows_from(&job->x_q8, h * job->n_rows);
        }
        moe_weight weight = linear->weight;
        weight.data = (const uint8_t *)weight.data + (size_t)h * n_out * weight.row_bytes;
        moe_matmul_args args = {.n_rows = job->n_rows,
                                .x_q8 = &x_q8,
                                .x = linear->x + h * linear->x_head_stride,
                                .x_stride = linear->x_row_stride,
                                .out = linear->out + h * linear->out_head_stride,
                                .out_stride = linear->out_row_stride};
        moe_cpu_matmul_slice(job->cpu, &weight, 0, n_out, args);
    }
}

int moe_cpu_head_linear(moe_device *device, const moe_head_linear *linear, uint32_t n_rows,
                        moe_error *err)
{
    (void)err;
    moe_cpu_device *cpu = moe_cpu_device_of(device);
    head_linear_job job = {.cpu = cpu, .linear = linear, .n_rows = n_rows};
    job.quantized = !moe_dtype_info_of(linear->weight.type)->is_float;
    if (job.quantized) {
        moe_q8_rows_bind(&job.x_q8, cpu->x_q8_memory, n_rows * linear->n_head, linear->weight.n_in);
        moe_cpu_for(cpu, linear->n_head, 1, head_quantize_range, &job);
    }
    moe_cpu_for(cpu, linear->n_head, 1, head_linear_range, &job);
    return MOE_OK;
}
