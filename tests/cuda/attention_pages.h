/* SPDX-License-Identifier: MIT */
/* Pages of a KV cache for tests of attention's kernels, and what their rows see. */
#ifndef MOE_ATTENTION_PAGES_H
#define MOE_ATTENTION_PAGES_H

#include "cuda/kernels/vector_launch.h"
#include "tests/kernels/vector_test_util.h"

#define MAX_ROWS  65
#define MAX_PAGES 40

typedef struct shape {
    uint32_t n_head, n_head_kv, k_dim, v_dim;
    bool v_in_k;
} shape;

/* The pages of one timeline; twins for what the reference stores. */
typedef struct timeline {
    void *pages[MAX_PAGES];
    void *twins[MAX_PAGES];
} timeline;

typedef struct cache {
    moe_kv_layout layout;
    size_t page_bytes;
    timeline *lines;
    uint32_t n_lines;
    moe_vector_kernels reference;
} cache;

static inline size_t align64(size_t n)
{
    return (n + 63) / 64 * 64;
}

static inline void cache_open(cache *c, moe_kv_type type, const shape *s, uint32_t n_lines)
{
    moe_kv_layout *l = &c->layout;
    *l = (moe_kv_layout){.type = type,
                         .n_head_kv = s->n_head_kv,
                         .k_dim = s->k_dim,
                         .v_dim = s->v_dim,
                         .k_row_bytes = moe_kv_row_bytes(type, s->k_dim),
                         .v_row_bytes = moe_kv_row_bytes(type, s->v_dim),
                         .k_offset = 64,
                         .v_in_k = s->v_in_k};
    size_t positions = (size_t)MOE_KV_PAGE * s->n_head_kv;
    l->v_offset = align64(l->k_offset + positions * l->k_row_bytes);
    if (s->v_in_k) {
        l->v_offset = l->k_offset;
        l->v_row_bytes = l->k_row_bytes;
    }
    c->page_bytes = align64(l->v_offset + positions * l->v_row_bytes);
    c->n_lines = n_lines;
    c->lines = calloc(n_lines, sizeof(*c->lines));
    assert_non_null(c->lines);
    for (uint32_t i = 0; i < n_lines * MAX_PAGES; i++) {
        timeline *line = &c->lines[i / MAX_PAGES];
        line->pages[i % MAX_PAGES] = aligned_alloc(64, c->page_bytes);
        line->twins[i % MAX_PAGES] = aligned_alloc(64, c->page_bytes);
        assert_non_null(line->pages[i % MAX_PAGES]);
        assert_non_null(line->twins[i % MAX_PAGES]);
        /* What nobody stored reads as NaNs. */
        memset(line->pages[i % MAX_PAGES], 0xff, c->page_bytes);
        memset(line->twins[i % MAX_PAGES], 0xff, c->page_bytes);
    }
    moe_vector_kernels_init(&c->reference, 0);
}

static inline void cache_close(cache *c)
{
    for (uint32_t i = 0; i < c->n_lines * MAX_PAGES; i++) {
        free(c->lines[i / MAX_PAGES].pages[i % MAX_PAGES]);
        free(c->lines[i / MAX_PAGES].twins[i % MAX_PAGES]);
    }
    free(c->lines);
}

static inline uint8_t *key_at(const cache *c, void *const *pages, uint32_t stored, uint32_t head)
{
    size_t slot = (size_t)head * MOE_KV_PAGE + stored % MOE_KV_PAGE;
    return (uint8_t *)pages[stored / MOE_KV_PAGE] + c->layout.k_offset +
           slot * c->layout.k_row_bytes;
}

static inline uint8_t *value_at(const cache *c, void *const *pages, uint32_t stored, uint32_t head)
{
    size_t slot = (size_t)head * MOE_KV_PAGE + stored % MOE_KV_PAGE;
    return (uint8_t *)pages[stored / MOE_KV_PAGE] + c->layout.v_offset +
           slot * c->layout.v_row_bytes;
}

static inline void fill_line(cache *c, timeline *line, uint32_t n, uint64_t *seed, test_kind kind)
{
    float x[1024];
    const moe_kv_layout *l = &c->layout;
    for (uint32_t i = 0; i < n * l->n_head_kv; i++) {
        test_fill(seed, kind, x, l->k_dim);
        uint8_t *key = key_at(c, line->pages, i / l->n_head_kv, i % l->n_head_kv);
        c->reference.kv_store((moe_kv_type)l->type, x, key, l->k_dim);
        test_fill(seed, kind, x, l->v_dim);
        uint8_t *value = value_at(c, line->pages, i / l->n_head_kv, i % l->n_head_kv);
        if (!l->v_in_k)
            c->reference.kv_store((moe_kv_type)l->type, x, value, l->v_dim);
    }
}

/* What a row sees; zeros: everything before it. */
typedef struct mask {
    uint32_t window, chunk;
    float cap;
    bool sinks, row_scales;
} mask;

/* Nodes of a tree whose root is at `base`: node i is stored at base + i and sees its ancestors.
 * Each node follows one of the three before it. */
typedef struct tree {
    uint32_t paths[MAX_ROWS][MAX_ROWS], depth[MAX_ROWS];
} tree;

static inline void grow_tree(tree *t, timeline *line, uint32_t base, uint32_t n, uint64_t *seed,
                             moe_cuda_kv_row *rows)
{
    for (uint32_t node = 0; node < n; node++) {
        uint32_t parent = node == 0 ? 0 : node - 1 - test_below(seed, node < 3 ? node : 3);
        t->depth[node] = node == 0 ? 0 : t->depth[parent] + 1;
        memcpy(t->paths[node], t->paths[parent], sizeof(t->paths[node]));
        t->paths[node][t->depth[node]] = base + node;
        rows[node] = (moe_cuda_kv_row){.pages = line->pages,
                                       .path = t->paths[node],
                                       .path_first = base,
                                       .position = base + t->depth[node],
                                       .stored = base + node};
    }
}

#endif
