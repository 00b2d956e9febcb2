/* SPDX-License-Identifier: MIT */
/* Measures one layer's attention on the CPU device, at depths and with types of the KV cache,
 * beside what the same threads read of the same memory:
 *
 *     attention_bench [--threads N] [--rows N] [--depths N,N,...]
 *
 * Each line is a shape and type; its columns are the shortest time of a call and the cache bytes a
 * second as a share of the plain read. With --rows the last N positions are queried together, as a
 * chunk of a prompt does; the share then says little, and GMAC/s follow. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/cpu_device.h"
#include "cpu/kernels/cpu_features.h"
#include "cpu/kernels/vector_ops.h"
#include "runtime/base/clock.h"

#define REPEATS      25u
#define OTHER_LAYERS 8u /* of a page: neighbours in memory that this layer does not read */
#define MAX_PAGES    4096u

typedef struct shape {
    const char *name;
    uint32_t n_head, n_head_kv, k_dim, v_dim;
    bool v_in_k;
} shape;

static const shape shapes[] = {
    {"16/16 heads of 128", 16, 16, 128, 128, false},
    {"32/4 heads of 128", 32, 4, 128, 128, false},
    {"MLA 16/1 of 576", 16, 1, 576, 512, true},
};

static const struct {
    moe_kv_type type;
    const char *name;
} types[] = {{MOE_KV_F16, "f16"}, {MOE_KV_Q8_0, "q8_0"}, {MOE_KV_Q4_0, "q4_0"}, {MOE_KV_F8, "f8"}};

typedef struct reading {
    uint8_t **pages;
    size_t bytes; /* of a page */
    uint32_t n_pages;
    moe_task_queue queue;
    _Atomic uint32_t sink;
} reading;

/* Reads the layer's part of every page. */
static void read_pages(void *arg, uint32_t worker, uint32_t n_workers)
{
    (void)worker;
    (void)n_workers;
    reading *r = arg;
    uint32_t sum = 0;
    for (uint32_t p; (p = moe_task_next(&r->queue)) < r->n_pages;) {
        const uint64_t *words = (const uint64_t *)r->pages[p];
        uint64_t a = 0, b = 0, c = 0, d = 0;
        for (size_t i = 0; i + 4 <= r->bytes / 8; i += 4) {
            a ^= words[i];
            b ^= words[i + 1];
            c ^= words[i + 2];
            d ^= words[i + 3];
        }
        sum ^= (uint32_t)(a ^ b ^ c ^ d);
    }
    r->sink ^= sum;
}

typedef struct measured {
    moe_device *device;
    moe_team *team;
    uint32_t n_rows;
    void *pages[MAX_PAGES];
    uint8_t *arena;
    size_t page_bytes, layer_bytes;
    uint32_t n_pages;
} measured;

static int fail(const char *what)
{
    fprintf(stderr, "attention_bench: %s\n", what);
    return 1;
}

/* Fills a page's part with rows that are finite in every type. */
static void fill_layer(const moe_vector_kernels *k, const moe_kv_layout *layout, uint8_t *page)
{
    float x[1024];
    uint32_t n = layout->n_head_kv * MOE_KV_PAGE;
    for (uint32_t r = 0; r < n; r++) {
        for (uint32_t i = 0; i < layout->k_dim; i++) {
            x[i] = (float)((r * 31 + i * 17) % 101) / 101.0f - 0.5f;
        }
        k->kv_store((moe_kv_type)layout->type, x, page + r * layout->k_row_bytes, layout->k_dim);
        if (!layout->v_in_k) {
            k->kv_store((moe_kv_type)layout->type, x,
                        page + layout->v_offset + r * layout->v_row_bytes, layout->v_dim);
        }
    }
}

static bool lay_out(measured *m, const shape *s, moe_kv_type type, uint32_t depth,
                    moe_kv_layout *layout)
{
    moe_vector_kernels k;
    moe_vector_kernels_init(&k, moe_cpu_features());
    size_t positions = (size_t)s->n_head_kv * MOE_KV_PAGE;
    *layout = (moe_kv_layout){.type = type,
                              .n_head_kv = s->n_head_kv,
                              .k_dim = s->k_dim,
                              .v_dim = s->v_dim,
                              .k_row_bytes = moe_kv_row_bytes(type, s->k_dim),
                              .v_row_bytes = moe_kv_row_bytes(type, s->v_dim),
                              .v_in_k = s->v_in_k};
    layout->v_offset = s->v_in_k ? 0 : positions * layout->k_row_bytes;
    m->layer_bytes = layout->v_offset + positions * layout->v_row_bytes;
    if (s->v_in_k) {
        layout->v_row_bytes = layout->k_row_bytes;
        m->layer_bytes = positions * layout->k_row_bytes;
    }
    m->page_bytes = (1 + OTHER_LAYERS) * m->layer_bytes;
    m->n_pages = (depth + MOE_KV_PAGE - 1) / MOE_KV_PAGE;
    void *memory;
    if (m->n_pages > MAX_PAGES ||
        m->device->ops->alloc(m->device, m->n_pages * m->page_bytes, &memory, NULL) != MOE_OK) {
        return false;
    }
    m->arena = memory;
    for (uint32_t p = 0; p < m->n_pages; p++) {
        m->pages[p] = m->arena + p * m->page_bytes;
        if (p == 0) {
            fill_layer(&k, layout, m->arena);
        } else {
            memcpy(m->pages[p], m->arena, m->layer_bytes);
        }
    }
    return true;
}

/* The shortest time of a call: other programs can only make it longer. */
static uint64_t time_attention(measured *m, const shape *s, const moe_kv_layout *layout,
                               uint32_t depth)
{
    uint32_t n = m->n_rows;
    moe_kv_row *rows = calloc(n, sizeof *rows);
    float *q = calloc((size_t)n * s->n_head * s->k_dim, sizeof *q);
    float *out = calloc((size_t)n * s->n_head * s->v_dim, sizeof *out);
    uint64_t best = UINT64_MAX;
    for (uint32_t i = 0; q != NULL && i < n * s->n_head * s->k_dim; i++) {
        q[i] = (float)(i % 13) / 13.0f;
    }
    for (uint32_t r = 0; rows != NULL && r < n; r++) {
        rows[r] = moe_kv_row_at(m->pages, depth - n + r);
    }
    moe_attention attention = {
        .layout = *layout, .rows = rows, .q = q, .n_head = s->n_head, .scale = 0.1f, .out = out};
    for (uint32_t i = 0; rows != NULL && q != NULL && out != NULL && i < REPEATS; i++) {
        uint64_t start = moe_now_ns();
        (void)m->device->ops->attention(m->device, &attention, n, NULL);
        uint64_t took = moe_now_ns() - start;
        best = took < best ? took : best;
    }
    free(rows);
    free(q);
    free(out);
    return best;
}

static uint64_t time_reading(measured *m)
{
    uint64_t best = UINT64_MAX;
    for (uint32_t i = 0; i < REPEATS; i++) {
        reading r = {.pages = (uint8_t **)m->pages, .bytes = m->layer_bytes, .n_pages = m->n_pages};
        uint64_t start = moe_now_ns();
        moe_team_run(m->team, read_pages, &r);
        uint64_t took = moe_now_ns() - start;
        best = took < best ? took : best;
    }
    return best;
}

static int measure(measured *m, const shape *s, uint32_t t, uint32_t depth)
{
    moe_kv_layout layout;
    if (depth < m->n_rows || !lay_out(m, s, types[t].type, depth, &layout)) {
        return fail("a depth is too small for --rows, or does not fit in memory");
    }
    double bytes = (double)m->n_pages * (double)m->layer_bytes;
    double ns = (double)time_attention(m, s, &layout, depth);
    double plain = (double)time_reading(m);
    printf("%-20s %-5s %6u  %8.3f ms %6.1f GB/s  plain read %5.1f GB/s  %3.0f %%", s->name,
           types[t].name, depth, ns / 1e6, bytes / ns, bytes / plain, 100.0 * plain / ns);
    if (m->n_rows > 1) {
        double macs = (double)m->n_rows * s->n_head * (s->k_dim + s->v_dim) *
                      ((double)depth - 0.5 * m->n_rows);
        printf("  %6.1f GMAC/s", macs / ns);
    }
    printf("\n");
    m->device->ops->free(m->device, m->arena, m->n_pages * m->page_bytes);
    return 0;
}

int main(int argc, char **argv)
{
    measured m = {.n_rows = 1};
    uint32_t threads = 0;
    const char *depths = "1024,4096,16384";
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--threads") == 0) {
            threads = (uint32_t)strtoul(value, NULL, 10);
        } else if (strcmp(argv[i], "--rows") == 0) {
            m.n_rows = (uint32_t)strtoul(value, NULL, 10);
        } else if (strcmp(argv[i], "--depths") == 0) {
            depths = value;
        } else {
            return fail("usage: attention_bench [--threads N] [--rows N] [--depths N,N,...]");
        }
    }
    moe_cpu_device_options options = {.cpu_features = moe_cpu_features()};
    moe_error err;
    if (m.n_rows == 0 || moe_team_create(&m.team, threads, &err) != MOE_OK) {
        return fail("cannot start the threads");
    }
    options.team = m.team;
    moe_device_limits limits = {.linear = {m.n_rows, 64}, .max_v_dim = 576, .max_head_group = 16};
    if (moe_cpu_device_open(&m.device, &options, &err) != MOE_OK ||
        m.device->ops->reserve(m.device, &limits, &err) != MOE_OK) {
        return fail(err.message);
    }
    int status = 0;
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        for (uint32_t t = 0; t < sizeof types / sizeof types[0]; t++) {
            char *next = (char *)depths;
            while (status == 0 && *next != '\0') {
                uint32_t depth = (uint32_t)strtoul(next, &next, 10);
                next += *next == ',';
                status = measure(&m, &shapes[s], t, depth);
            }
        }
    }
    m.device->ops->close(m.device);
    moe_team_destroy(&m.team);
    return status;
}
