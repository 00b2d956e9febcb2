/* SPDX-License-Identifier: MIT */
/* A layer's experts in the shapes of common models: one token's, those of eight tokens with
 * distinct choices, and those of a prompt's chunk. Layers take turns, so that no cache holds them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_gpu.h"
#include "runtime/base/dtype.h"

#define MAX_EXPERTS 128u
#define N_USED      8u

typedef struct shape {
    const char *name;
    moe_dtype type;
    uint32_t n_in, n_ff;
} shape;

/* Qwen3-30B-A3B, OLMoE, gpt-oss (whose rows are rounded to whole blocks). */
static const shape shapes[] = {{"8 of 768", MOE_DTYPE_Q4_K, 2048, 768},
                               {"8 of 768", MOE_DTYPE_Q6_K, 2048, 768},
                               {"8 of 1024", MOE_DTYPE_Q4_K, 2048, 1024},
                               {"8 of 2880", MOE_DTYPE_MXFP4, 2880, 2880}};

typedef struct experts_bench {
    bench *b;
    const shape *shape;
    size_t gate_bytes, down_bytes; /* of one expert's gate (or up), and of its down */
    uint8_t *weights;              /* device, [n_layers][MAX_EXPERTS] experts */
    uint32_t n_layers;
    float *out; /* device, [BENCH_ROWS * N_USED][n_in] */
    moe_expert_work works[MAX_EXPERTS];
    uint32_t x_index[MAX_EXPERTS][BENCH_ROWS];
    uint32_t out_index[MAX_EXPERTS][BENCH_ROWS];
} experts_bench;

static moe_weight part_of(const experts_bench *e, const uint8_t *data, uint32_t n_in,
                          uint32_t n_out)
{
    moe_dtype type = e->shape->type;
    return (moe_weight){type, data, n_in, n_out, moe_dtype_row_bytes(type, n_in), 0};
}

/* Deals the choices of n_rows tokens to n_experts experts in turn. */
static void deal(experts_bench *e, uint32_t layer, uint32_t n_rows, uint32_t n_experts)
{
    const shape *s = e->shape;
    size_t expert_bytes = 2 * e->gate_bytes + e->down_bytes;
    for (uint32_t i = 0; i < n_experts; i++) {
        const uint8_t *at = e->weights + ((size_t)layer * MAX_EXPERTS + i) * expert_bytes;
        e->works[i] =
            (moe_expert_work){.gate = part_of(e, at, s->n_in, s->n_ff),
                              .up = part_of(e, at + e->gate_bytes, s->n_in, s->n_ff),
                              .down = part_of(e, at + 2 * e->gate_bytes, s->n_ff, s->n_in),
                              .x_index = e->x_index[i],
                              .out_index = e->out_index[i]};
    }
    for (uint32_t choice = 0; choice < n_rows * N_USED; choice++) {
        uint32_t i = choice % n_experts;
        uint32_t at = e->works[i].n_rows++;
        e->x_index[i][at] = choice / N_USED;
        e->out_index[i][at] = choice;
    }
}

static int run(experts_bench *e, uint32_t n_rows, uint32_t n_experts, uint32_t n_calls)
{
    bench *b = e->b;
    for (uint32_t call = 0; call < n_calls; call++) {
        deal(e, call % e->n_layers, n_rows, n_experts);
        if (b->ops->experts(b->device, b->x, n_rows, e->shape->n_in, e->works, n_experts, e->out,
                            e->shape->n_in, &b->err) != MOE_OK) {
            return bench_failed(b);
        }
    }
    return 0;
}

static int measure(experts_bench *e, uint32_t n_rows, uint32_t n_experts)
{
    bench *b = e->b;
    const shape *s = e->shape;
    const uint32_t n_calls = b->quick ? 1 : n_rows > 8 ? 10 : 200;
    uint64_t begin;
    uint64_t end;
    if (run(e, n_rows, n_experts, b->quick ? 1 : e->n_layers) != 0 || bench_sync(b, &begin) != 0 ||
        run(e, n_rows, n_experts, n_calls) != 0 || bench_sync(b, &end) != 0) {
        return 1;
    }
    double seconds = (double)(end - begin) * 1e-9 / n_calls;
    double bytes = (double)n_experts * (double)(2 * e->gate_bytes + e->down_bytes);
    double operations = 2.0 * n_rows * N_USED * 3.0 * s->n_in * s->n_ff;
    char of[96];
    snprintf(of, sizeof of, "%s %s, %u row%s, %u experts", s->name,
             moe_dtype_info_of(s->type)->name, n_rows, n_rows == 1 ? "" : "s", n_experts);
    bench_figure figure = {.subject = "experts",
                           .of = of,
                           .value = bytes / seconds * 1e-9,
                           .unit = "GB/s",
                           .bound = b->memory_bytes_per_s * 1e-9,
                           .bound_of = "memory"};
    if (n_rows > 8) {
        figure.value = operations / seconds * 1e-12;
        figure.unit = "TFLOP/s";
        figure.bound = 2 * b->tera_flops;
        figure.bound_of = "int8 matrix units";
    }
    bench_figure_put(b->json, &figure);
    return 0;
}

static int measure_shape(experts_bench *e)
{
    bench *b = e->b;
    const shape *s = e->shape;
    e->gate_bytes = moe_dtype_row_bytes(s->type, s->n_in) * s->n_ff;
    e->down_bytes = moe_dtype_row_bytes(s->type, s->n_ff) * s->n_in;
    e->n_layers = b->quick ? 1 : 2;
    size_t n = (size_t)e->n_layers * MAX_EXPERTS * (2 * e->gate_bytes + e->down_bytes);
    size_t out_bytes = (size_t)BENCH_ROWS * N_USED * s->n_in * sizeof(float);
    void *weights = NULL;
    void *out = NULL;
    int code = 0;
    if (b->ops->alloc(b->device, n, &weights, &b->err) != MOE_OK ||
        b->ops->alloc(b->device, out_bytes, &out, &b->err) != MOE_OK) {
        code = bench_failed(b);
    }
    code = code != 0 ? code : bench_fill(b, weights, n);
    e->weights = weights;
    e->out = out;
    code = code != 0 ? code : measure(e, 1, N_USED);
    code = code != 0 ? code : measure(e, 8, 8 * N_USED);
    code = code != 0 || b->quick ? code : measure(e, BENCH_ROWS, MAX_EXPERTS);
    b->ops->free(b->device, weights, n);
    b->ops->free(b->device, out, out_bytes);
    return code;
}

/* The shapes of --quick, which the emulation runs. */
static const shape small_shapes[] = {{"8 of 32", MOE_DTYPE_Q8_0, 64, 32}};

int bench_experts(bench *b)
{
    experts_bench *e = calloc(1, sizeof *e);
    if (e == NULL) {
        return 1;
    }
    e->b = b;
    const shape *first = b->quick ? small_shapes : shapes;
    size_t n = b->quick ? 1 : sizeof shapes / sizeof shapes[0];
    int code = 0;
    for (size_t s = 0; s < n && code == 0; s++) {
        e->shape = &first[s];
        code = measure_shape(e);
    }
    free(e);
    return code;
}
