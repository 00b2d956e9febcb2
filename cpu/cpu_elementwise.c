/* SPDX-License-Identifier: MIT */
/* The operations of the device contract that work on one row, head or element at a time. */
#include <math.h>
#include <string.h>

#include "cpu/cpu_internal.h"
#include "cpu/kernels/delta_rule.h"
#include "cpu/kernels/router_select.h"
#include "runtime/base/moe_assert.h"

/* With fewer elements than this, the caller's thread alone computes: waking the team would take
 * longer. */
#define GRAIN_ELEMENTS 16384u

static uint32_t rows_per_task(uint32_t n)
{
    MOE_ASSERT(n > 0);
    return n >= GRAIN_ELEMENTS ? 1 : GRAIN_ELEMENTS / n;
}

typedef struct rows_job {
    moe_cpu_device *cpu;
    const float *x;
    const float *w;
    float *y;
    uint32_t n;
    size_t x_stride;
    float value;
    const uint32_t *index;
    const moe_weight *table;
    const int32_t *tokens;
    const moe_rope *rope;
    const moe_route *route;
    const moe_gating *gating;
    moe_greatest *greatest;
} rows_job;

static void embed_range(void *context, uint32_t begin, uint32_t end)
{
    const rows_job *job = context;
    const moe_weight *table = job->table;
    for (uint32_t r = begin; r < end; r++) {
        MOE_ASSERT(job->tokens[r] >= 0 && (uint32_t)job->tokens[r] < table->n_out);
        const uint8_t *row =
            (const uint8_t *)table->data + (size_t)job->tokens[r] * table->row_bytes;
        float *y = job->y + (size_t)r * table->n_in;
        job->cpu->matmul.dequantize[table->type](row, y, table->n_in);
        if (job->value != 1.0f) {
            job->cpu->vector.scale(job->value, y, table->n_in);
        }
    }
}

int moe_cpu_embed(moe_device *device, const moe_weight *table, const int32_t *tokens,
                  uint32_t n_rows, float scale, float *out, moe_error *err)
{
    MOE_ASSERT(table->row_bytes == moe_dtype_row_bytes(table->type, table->n_in));
    (void)err;
    moe_cpu_device *cpu = moe_cpu_device_of(device);
    rows_job job = {.cpu = cpu, .table = table, .tokens = tokens, .value = scale, .y = out};
    moe_cpu_for(cpu, n_rows, rows_per_task(table->n_in), embed_range, &job);
    return MOE_OK;
}

int moe_cpu_gather(moe_device *device, const float *x, uint32_t n, const uint32_t *rows,
                   uint32_t n_rows, float *out, moe_error *err)
{
    (void)device;
    (void)err;
    for (uint32_t r = 0; r < n_rows; r++) {
        memcpy(out + (size_t)r * n, x + (size_t)rows[r] * n, n * sizeof *out);
    }
    return MOE_OK;
}

int moe_cpu_scatter(moe_device *device, const float *x, uint32_t n, const uint32_t *rows,
                    uint32_t n_rows, float *out, moe_error *err)
{
    (void)device;
    (void)err;
    for (uint32_t r = 0; r < n_rows; r++) {
        memcpy(out + (size_t)rows[r] * n, x + (size_t)r * n, n * sizeof *out);
    }
    return MOE_OK;
}

int moe_cpu_copy_rows(moe_device *device, const float *src, size_t src_stride, float *dst,
                      size_t dst_stride, uint32_t n, size_t n_rows, moe_error *err)
{
    (void)device;
    (void)err;
    for (size_t r = 0; r < n_rows; r++) {
        memcpy(dst + r * dst_stride, src + r * src_stride, n * sizeof *dst);
    }
    return MOE_OK;
}

static void rms_norm_range(void *context, uint32_t begin, uint32_t end)
{
    const rows_job *job = context;
    for (uint32_t r = begin; r < end; r++) {
        job->cpu->vector.rms_norm(job->x + r * job->x_stride, job->w, job->y + r * job->x_stride,
                                  job->n, job->value);
    }
}

int moe_cpu_rms_norm(moe_device *device, const float *x, const float *weight, float *y,
                     uint32_t n_rows, uint32_t n, size_t x_stride, float eps, moe_error *err)
{
    MOE_ASSERT(x_stride >= n);
    (void)err;
    moe_cpu_device *cpu = moe_cpu_device_of(device);
    rows_job job = {
        .cpu = cpu, .x = x, .w = weight, .y = y, .n = n, .x_stride = x_stride, .value = eps};
    moe_cpu_for(cpu, n_rows, rows_per_task(n), rms_norm_range, &job);
    return MOE_OK;
}

int moe_cpu_clamp(moe_device *device, float limit, float *x, size_t n, moe_error *err)
{
    MOE_ASSERT(n <= UINT32_MAX);
    (void)err;
    moe_cpu_device_of(device)->vector.clamp(limit, x, (uint32_t)n);
    return MOE_OK;
}

int moe_cpu_scale(moe_device *device, float factor, float *x, size_t n, moe_error *err)
{
    MOE_ASSERT(n <= UINT32_MAX);
    (void)err;
    moe_cpu_device_of(device)->vector.scale(factor, x, (uint32_t)n);
    return MOE_OK;
}

typedef struct add_job {
    moe_cpu_device *cpu;
    const float *a, *b;
    float *y;
    size_t n;
} add_job;

static void add_range(void *context, uint32_t begin, uint32_t end)
{
    const add_job *job = context;
    size_t from = (size_t)begin * GRAIN_ELEMENTS;
    size_t to = (size_t)end * GRAIN_ELEMENTS;
    to = to < job->n ? to : job->n;
    job->cpu->vector.add(job->a + from, job->b + from, job->y + from, (uint32_t)(to - from));
}

int moe_cpu_add(moe_device *device, const float *a, const float *b, float *y, size_t n,
                moe_error *err)
{
    (void)err;
    moe_cpu_device *cpu = moe_cpu_device_of(device);
    add_job job = {cpu, a, b, y, n};
    moe_cpu_for(cpu, (uint32_t)((n + GRAIN_ELEMENTS - 1) / GRAIN_ELEMENTS), 1, add_range, &job);
    return MOE_OK;
}

static void rope_range(void *context, uint32_t begin, uint32_t end)
{
    const rows_job *job = context;
    const moe_rope *rope = job->rope;
    for (uint32_t r = begin; r < end; r++) {
        const float *cos = rope->cos + (size_t)r * (rope->n_rot / 2);
        const float *sin = rope->sin + (size_t)r * (rope->n_rot / 2);
        for (uint32_t h = 0; h < rope->n_head; h++) {
            float *x = rope->x + r * rope->row_stride + h * rope->head_stride;
            if (rope->interleaved) {
                job->cpu->vector.rope_interleaved(x, cos, sin, rope->n_rot);
            } else {
                job->cpu->vector.rope_halves(x, cos, sin, rope->n_rot);
            }
        }
    }
}

int moe_cpu_rope(moe_device *device, const moe_rope *rope, uint32_t n_rows, moe_error *err)
{
    MOE_ASSERT(rope->n_rot % 2 == 0 && rope->head_stride >= rope->n_rot);
    (void)err;
    moe_cpu_device *cpu = moe_cpu_device_of(device);
    rows_job job = {.cpu = cpu, .rope = rope};
    moe_cpu_for(cpu, n_rows, rows_per_task(rope->n_head * rope->n_rot), rope_range, &job);
    return MOE_OK;
}

static void route_range(void *context, uint32_t begin, uint32_t end)
{
    const rows_job *job = context;
    const moe_route *route = job->route;
    moe_router_gate gate = {
        .kind = (moe_router_kind)route->gate,
        .n_expert = route->n_expert,
        .n_expert_used = route->n_used,
        .n_group = route->n_group,
        .n_group_used = route->n_group_used,
        .group_score = (moe_router_group_score)route->group_score,
        .renormalise = route->renormalise,
        .given = route->given,
        .scale = route->scale,
        .expert_scales = route->expert_scales,
    };
    MOE_ASSERT(gate.n_expert <= MOE_ROUTER_MAX_EXPERTS && gate.n_expert_used > 0);
    MOE_ASSERT(gate.n_expert_used <= MOE_ROUTER_MAX_USED && gate.n_expert_used <= gate.n_expert);
    MOE_ASSERT(gate.n_group < 2 || gate.n_expert % gate.n_group == 0);
    for (uint32_t r = begin; r < end; r++) {
        float *probs = route->probs != NULL ? route->probs + (size_t)r * route->n_expert : NULL;
        job->cpu->vector.router_select(&gate, route->logits + (size_t)r * route->n_expert,
                                       route->selection_bias,
                                       route->experts + (size_t)r * route->n_used,
                                       route->weights + (size_t)r * route->n_used, probs);
    }
}

int moe_cpu_route(moe_device *device, const moe_route *routes, uint32_t n_routes, uint32_t n_rows,
                  moe_error *err)
{
    MOE_ASSERT(n_routes <= MOE_MAX_ROUTES);
    (void)err;
    moe_cpu_device *cpu = moe_cpu_device_of(device);
    for (uint32_t i = 0; i < n_routes; i++) {
        rows_job job = {.cpu = cpu, .route = &routes[i]};
        moe_cpu_for(cpu, n_rows, 8, route_range, &job);
    }
    return MOE_OK;
}

int moe_cpu_sigmoid_scale(moe_device *device, const float *gate, float *x, uint32_t n_rows,
                          uint32_t n, moe_error *err)
{
    (void)err;
    moe_cpu_device *cpu = moe_cpu_device_of(device);
    for (uint32_t r = 0; r < n_rows; r++) {
        cpu->vector.scale(1.0f / (1.0f + moe_exp(-gate[r])), x + (size_t)r * n, n);
    }
    return MOE_OK;
}

static void gate_by_softplus(const rows_job *job, const float *gate, float *x)
{
    const moe_gating *g = job->gating;
    if (g->one) {
        job->cpu->vector.scale(moe_softplus(gate[0]), x, g->n);
        return;
    }
    for (uint32_t i = 0; i < g->n; i++) {
        x[i] *= moe_softplus(gate[i]);
    }
}

static void gate_range(void *context, uint32_t begin, uint32_t end)
{
    const rows_job *job = context;
    const moe_gating *g = job->gating;
    for (uint32_t r = begin; r < end; r++) {
        const float *gate = g->gate + r * g->gate_stride;
        float *x = g->x + r * g->x_stride;
        if (g->kind == MOE_GATING_SILU) {
            job->cpu->vector.silu_mul(gate, x, x, g->n);
        } else if (g->kind == MOE_GATING_SIGMOID) {
            job->cpu->vector.sigmoid_mul(gate, x, x, g->n);
        } else if (g->kind == MOE_GATING_SOFTPLUS) {
            gate_by_softplus(job, gate, x);
        } else {
            for (uint32_t i = 0; i < g->n; i++) {
                x[i] *= gate[i];
            }
        }
    }
}

int moe_cpu_gate(moe_device *device, const moe_gating *gating, size_t n_rows, moe_error *err)
{
    MOE_ASSERT(gating->gate_stride >= (gating->one ? 1 : gating->n));
    MOE_ASSERT(gating->x_stride >= gating->n);
    MOE_ASSERT(n_rows <= UINT32_MAX);
    (void)err;
    moe_cpu_device *cpu = moe_cpu_device_of(device);
    rows_job job = {.cpu = cpu, .gating = gating};
    moe_cpu_for(cpu, (uint32_t)n_rows, rows_per_task(gating->n), gate_range, &job);
    return MOE_OK;
}

static void greatest_range(void *context, uint32_t begin, uint32_t end)
{
    const rows_job *job = context;
    const moe_vector_kernels *vector = &job->cpu->vector;
    for (uint32_t r = begin; r < end; r++) {
        const float *x = job->x + (size_t)r * job->n;
        uint32_t at = vector->argmax(x, job->n);
        bool found = x[at] > -INFINITY;
        float max = found ? x[at] : -INFINITY;
        job->greatest[r] = (moe_greatest){.index = found ? at : 0,
                                          .share = 1.0f / vector->exp_sum(x, job->n, max)};
    }
}

int moe_cpu_greatest(moe_device *device, const float *x, uint32_t n_rows, uint32_t n,
                     moe_greatest *out, moe_error *err)
{
    (void)err;
    moe_cpu_device *cpu = moe_cpu_device_of(device);
    rows_job job = {.cpu = cpu, .x = x, .n = n, .greatest = out};
    moe_cpu_for(cpu, n_rows, rows_per_task(n), greatest_range, &job);
    return MOE_OK;
}
