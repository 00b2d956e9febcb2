/* SPDX-License-Identifier: MIT */
/* Attention by depth and shape. One row (a decoded token) is bound by the memory that its keys and
 * values are read from; a prompt's rows by arithmetic. Timelines take turns, so that no cache holds
 * them: their pages overlap only where the pool is too small. */
#include <stdio.h>
#include <stdlib.h>

#include "bench_gpu.h"
#include "cpu/kernels/vector_ops.h"

#define POOL_BYTES ((size_t)4 << 30)

typedef struct shape {
    const char *name;
    uint32_t n_head, n_head_kv, k_dim, v_dim;
    bool mla;
} shape;

static const shape shapes[] = {{"32 heads, 4 of keys, 128", 32, 4, 128, 128, false},
                               {"16 heads, 16 of keys, 128", 16, 16, 128, 128, false},
                               {"64 heads, 8 of keys, 64", 64, 8, 64, 64, false},
                               {"MLA, 128 heads, 576", 128, 1, 576, 512, true}};

typedef struct attention_bench {
    bench *b;
    const shape *shape;
    moe_kv_layout layout;
    size_t page_bytes;
    uint8_t *pool; /* device */
    void **pages;  /* [n_pages], then the first ones once more */
    uint32_t n_pages;
    moe_kv_row rows[BENCH_ROWS];
    float *q, *out; /* device */
} attention_bench;

static void lay_out(attention_bench *a)
{
    const shape *s = a->shape;
    size_t k_row = moe_kv_row_bytes(MOE_KV_F16, s->k_dim);
    size_t v_row = moe_kv_row_bytes(MOE_KV_F16, s->v_dim);
    size_t keys = (size_t)s->n_head_kv * MOE_KV_PAGE * k_row;
    a->layout = (moe_kv_layout){.type = MOE_KV_F16,
                                .n_head_kv = s->n_head_kv,
                                .k_dim = s->k_dim,
                                .v_dim = s->v_dim,
                                .k_row_bytes = k_row,
                                .v_row_bytes = s->mla ? k_row : v_row,
                                .v_offset = s->mla ? 0 : keys,
                                .v_in_k = s->mla};
    a->page_bytes = keys + (s->mla ? 0 : (size_t)s->n_head_kv * MOE_KV_PAGE * v_row);
}

/* n_calls calls of so many rows at the end of so many positions. */
static int run(attention_bench *a, uint32_t depth, uint32_t n_rows, uint32_t n_calls)
{
    bench *b = a->b;
    uint32_t n_used = (depth + MOE_KV_PAGE - 1) / MOE_KV_PAGE;
    uint32_t first = 0;
    for (uint32_t call = 0; call < n_calls; call++) {
        for (uint32_t r = 0; r < n_rows; r++) {
            a->rows[r] = moe_kv_row_at(a->pages + first, depth - n_rows + r);
        }
        moe_attention attention = {.layout = a->layout,
                                   .rows = a->rows,
                                   .q = a->q,
                                   .n_head = a->shape->n_head,
                                   .scale = 0.0625f,
                                   .out = a->out};
        if (b->ops->attention(b->device, &attention, n_rows, &b->err) != MOE_OK) {
            return bench_failed(b);
        }
        first = (first + n_used) % a->n_pages;
    }
    return 0;
}

static int measure(attention_bench *a, uint32_t depth, uint32_t n_rows)
{
    bench *b = a->b;
    const uint32_t n_calls = b->quick ? 1 : n_rows == 1 ? 100 : depth > 20000 ? 2 : 6;
    uint64_t begin;
    uint64_t end;
    if (run(a, depth, n_rows,
            b->quick      ? 1
            : n_rows == 1 ? 8
                          : 1) != 0 ||
        bench_sync(b, &begin) != 0 || run(a, depth, n_rows, n_calls) != 0 ||
        bench_sync(b, &end) != 0) {
        return 1;
    }
    const shape *s = a->shape;
    double seconds = (double)(end - begin) * 1e-9 / n_calls;
    double bytes = (double)depth * (double)a->page_bytes / MOE_KV_PAGE;
    double seen = (double)n_rows * (depth - (n_rows - 1) / 2.0);
    double operations = 2.0 * s->n_head * (s->k_dim + s->v_dim) * seen;
    char of[96];
    snprintf(of, sizeof of, "%u row%s at %u: %s%s", n_rows, n_rows == 1 ? "" : "s", depth, s->name,
             b->exact_attention ? ", exact" : "");
    bench_figure figure = {.subject = "attention", .of = of};
    if (n_rows == 1) {
        figure.value = bytes / seconds * 1e-9;
        figure.unit = "GB/s";
        figure.bound = b->memory_bytes_per_s * 1e-9;
        figure.bound_of = "memory";
    } else {
        figure.value = operations / seconds * 1e-12;
        figure.unit = "TFLOP/s";
        figure.bound = b->tera_flops;
        figure.bound_of = "matrix units";
    }
    bench_figure_put(b->json, &figure);
    return 0;
}

static int measure_shape(attention_bench *a, size_t pool_bytes, uint32_t max_depth)
{
    static const uint32_t depths[] = {512, 4096, 16384, 32768, 131072};
    lay_out(a);
    a->n_pages = (uint32_t)(pool_bytes / a->page_bytes);
    uint32_t most = (max_depth + MOE_KV_PAGE - 1) / MOE_KV_PAGE;
    a->n_pages = a->n_pages < most ? most : a->n_pages;
    a->pages = malloc((a->n_pages + (size_t)most) * sizeof *a->pages);
    if (a->pages == NULL) {
        return 1;
    }
    /* A table may begin at any page of the pool, and goes on at its begin. */
    for (uint32_t p = 0; p < a->n_pages + most; p++) {
        a->pages[p] = a->pool + p % a->n_pages * a->page_bytes;
    }
    int code = 0;
    for (size_t d = 0; d < sizeof depths / sizeof depths[0] && code == 0; d++) {
        uint32_t depth = a->b->quick ? 100 : depths[d];
        code = measure(a, depth, 1);
        /* A prompt's chunk at 131072 takes seconds. */
        if (code == 0 && depth <= 32768) {
            code = measure(a, depth, a->b->quick ? 4 : BENCH_ROWS);
        }
        if (a->b->quick) {
            break;
        }
    }
    free(a->pages);
    return code;
}

int bench_attention(bench *b)
{
    const uint32_t max_depth = b->quick ? 128 : 131072;
    const size_t pool_bytes = b->quick ? (size_t)4 << 20 : POOL_BYTES;
    const size_t row = 128 * 576 * sizeof(float);
    attention_bench a = {.b = b};
    void *pool = NULL;
    void *q = NULL;
    void *out = NULL;
    int code = 0;
    if (b->ops->alloc(b->device, pool_bytes, &pool, &b->err) != MOE_OK ||
        b->ops->alloc(b->device, row * BENCH_ROWS, &q, &b->err) != MOE_OK ||
        b->ops->alloc(b->device, row * BENCH_ROWS, &out, &b->err) != MOE_OK) {
        code = bench_failed(b);
    }
    /* Queries, keys and values are x, again and again; as F16 its bits are finite numbers. */
    code = code != 0 ? code : bench_fill(b, q, row * BENCH_ROWS);
    code = code != 0 ? code : bench_fill(b, pool, pool_bytes);
    a.pool = pool;
    a.q = q;
    a.out = out;
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0] && code == 0; s++) {
        a.shape = &shapes[s];
        code = measure_shape(&a, pool_bytes, max_depth);
    }
    b->ops->free(b->device, pool, pool_bytes);
    b->ops->free(b->device, q, row * BENCH_ROWS);
    b->ops->free(b->device, out, row * BENCH_ROWS);
    return code;
}
