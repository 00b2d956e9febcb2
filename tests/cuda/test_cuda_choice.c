/* SPDX-License-Identifier: MIT */
/* Positions that indexers choose, on the device: against products in the order of
 * cpu/kernels/matmul.h and the choice of the host, for every type of the cache; with ties, zeros,
 * infinities and NaNs; rows of plain timelines and nodes of a tree; scores in one launch or in
 * several. Also blocks of positions, which each head chooses for itself, and pools of positions. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cpu/kernels/vector_ops.h"
#include "cpu/kernels/vector_reference.h"
#include "cuda/kernels/vector_launch.h"
#include "runtime/pass/index_choice.h"

#define PAGES  11u
#define STORED (PAGES * MOE_KV_PAGE)
#define KEY    32u /* elements before the index key */
#define ROWS   5u
#define HEADS  6u  /* not a multiple of the kernel's four */
#define MOST   64u /* elements of an index key */

typedef struct choice_case {
    moe_kv_type type;
    uint32_t dim, n_chosen;
    bool few_values; /* many scores are equal, and some are not finite */
    uint32_t block, n_local;
    uint32_t pool;
} choice_case;

/* A row's result has room for the positions behind its last whole pool. */
static uint32_t room_of(const choice_case *c)
{
    return c->n_chosen + (c->pool > 0 ? c->pool - 1 : 0);
}

typedef struct choice_data {
    uint8_t *pages[PAGES];
    float keys[STORED][MOST]; /* as they are stored */
    float queries[ROWS][HEADS * MOST], weights[ROWS][HEADS];
    uint32_t path[40];
    moe_cuda_kv_row rows[ROWS];
    float scores[HEADS * STORED];
    uint32_t chosen[HEADS * ROWS * (STORED + 64)];
} choice_data;

static uint32_t dice;

static float draw(const choice_case *c)
{
    static const float few[] = {0.0f, -0.0f, 1.0f, -1.0f, 0.5f, 1.0f, 0.0f, 1.0f};
    dice = dice * 1664525u + 1013904223u;
    return c->few_values ? few[dice >> 29] : (float)(dice >> 8) / 8388608.0f - 1.0f;
}

static moe_kv_layout layout_of(const choice_case *c)
{
    moe_kv_layout layout = {.type = (int)c->type,
                            .n_head_kv = 1,
                            .k_dim = KEY + c->dim,
                            .v_dim = 1,
                            .v_in_k = true,
                            .k_offset = 64};
    layout.k_row_bytes = moe_kv_row_bytes(c->type, layout.k_dim);
    return layout;
}

static void fill(const choice_case *c, choice_data *d)
{
    moe_kv_layout layout = layout_of(c);
    float key[KEY + MOST];
    for (uint32_t s = 0; s < STORED; s++) {
        uint8_t *row =
            d->pages[s / MOE_KV_PAGE] + layout.k_offset + s % MOE_KV_PAGE * layout.k_row_bytes;
        for (uint32_t i = 0; i < KEY + c->dim; i++) {
            key[i] = draw(c);
        }
        moe_kv_store_c(c->type, key, row, KEY + c->dim);
        moe_kv_load_c(c->type, row + moe_kv_row_bytes(c->type, KEY), d->keys[s], c->dim);
    }
    for (uint32_t r = 0; r < ROWS; r++) {
        for (uint32_t i = 0; i < HEADS * c->dim; i++) {
            d->queries[r][i] = draw(c);
        }
        for (uint32_t h = 0; h < HEADS; h++) {
            d->weights[r][h] = draw(c);
        }
    }
    if (c->few_values) {
        d->weights[1][2] = INFINITY;
        d->queries[2][3] = NAN;
    }
}

/* Rows see no more than they attend to, one more, all; one is a node of a tree. */
static void make_rows(const choice_case *c, choice_data *d)
{
    const uint32_t positions[ROWS] = {c->n_chosen - 1, c->n_chosen, STORED - 1, STORED - 30,
                                      STORED / 2};
    for (uint32_t r = 0; r < ROWS; r++) {
        d->rows[r] = (moe_cuda_kv_row){
            .pages = (void *const *)d->pages, .position = positions[r], .stored = positions[r]};
    }
    for (uint32_t i = 0; i < 40; i++) {
        d->path[i] = STORED - 1 - (i * 7 + 3) % 64;
    }
    d->rows[3].path = d->path;
    d->rows[3].path_first = STORED - 30 - 39;
    d->rows[3].stored = d->path[39];
}

static uint32_t stored_at(const moe_cuda_kv_row *row, uint32_t position)
{
    return row->path != NULL && position >= row->path_first ? row->path[position - row->path_first]
                                                            : position;
}

static float product(const float *key, const float *query, uint32_t n)
{
    float lanes[16] = {0};
    for (uint32_t i = 0; i < n; i++) {
        lanes[i % 16] = fmaf(key[i], query[i], lanes[i % 16]);
    }
    for (uint32_t half = 8; half > 0; half /= 2) {
        for (uint32_t l = 0; l < half; l++) {
            lanes[l] += lanes[l + half];
        }
    }
    return lanes[0];
}

static void check_row(const choice_case *c, const choice_data *d, uint32_t r)
{
    static float scores[STORED];
    static uint32_t scratch[STORED], expected[STORED];
    const moe_cuda_kv_row *row = &d->rows[r];
    const uint32_t pool = c->pool > 0 ? c->pool : 1, n_keys = (row->position + 1) / pool;
    const uint32_t n = c->n_chosen + (row->position + 1) % pool;
    const uint32_t *got = d->chosen + (size_t)r * room_of(c);
    if (row->position + 1 < c->n_chosen + pool) {
        for (uint32_t i = 0; i < room_of(c); i++) {
            assert_int_equal(got[i], UINT32_MAX);
        }
        return;
    }
    for (uint32_t p = 0; p < n_keys; p++) {
        const float *key = d->keys[stored_at(row, (p + 1) * pool - 1)];
        scores[p] = 0.0f;
        for (uint32_t h = 0; h < HEADS; h++) {
            float x = product(key, d->queries[r] + (size_t)h * c->dim, c->dim);
            scores[p] =
                fmaf(c->pool % 2 == 1 ? 1.0f : d->weights[r][h], x > 0.0f ? x : 0.0f, scores[p]);
        }
    }
    moe_choose_positions(scores, n_keys, c->n_chosen / pool, scratch, expected);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t position = i < c->n_chosen ? expected[i / pool] * pool + i % pool
                                                  : n_keys * pool + i - c->n_chosen;
        if (got[i] != stored_at(row, position)) {
            fail_msg("type %d, %u of %u, row %u: choice %u is %u, not %u", (int)c->type,
                     c->n_chosen, row->position + 1, r, i, got[i], stored_at(row, position));
        }
    }
}

/* Blocks by the highest product, NaN if one is; the last ones are always chosen. */
static void check_head(const choice_case *c, const choice_data *d, uint32_t r, uint32_t h)
{
    static float scores[STORED];
    static uint32_t scratch[STORED], expected[STORED];
    const moe_cuda_kv_row *row = &d->rows[r];
    const uint32_t *got = d->chosen + ((size_t)h * ROWS + r) * c->n_chosen;
    const uint32_t n_blocks = row->position / c->block + 1;
    if (row->position < c->n_chosen) {
        assert_int_equal(got[0], UINT32_MAX);
        return;
    }
    for (uint32_t p = 0; p <= row->position; p++) {
        float *score = &scores[p / c->block];
        float x = product(d->keys[stored_at(row, p)], d->queries[r] + (size_t)h * c->dim, c->dim);
        *score = p % c->block == 0 || x > *score || isnan(x) ? x : *score;
    }
    for (uint32_t b = n_blocks - c->n_local; b < n_blocks; b++) {
        scores[b] = INFINITY;
    }
    moe_choose_positions(scores, n_blocks, c->n_chosen / c->block, scratch, expected);
    for (uint32_t i = 0; i < c->n_chosen; i++) {
        uint32_t position = expected[i / c->block] * c->block + i % c->block;
        uint32_t stored = position <= row->position ? stored_at(row, position) : UINT32_MAX;
        if (got[i] != stored) {
            fail_msg("type %d, blocks of %u, row %u, head %u: choice %u is %u, not %u",
                     (int)c->type, c->block, r, h, i, got[i], stored);
        }
    }
}

static void check_case(const choice_case *c, choice_data *d, size_t n_scores)
{
    /* The rows of queries are as wide as the case's keys. */
    static float queries[ROWS * HEADS * MOST];
    for (uint32_t r = 0; r < ROWS; r++) {
        memcpy(queries + (size_t)r * HEADS * c->dim, d->queries[r],
               (size_t)HEADS * c->dim * sizeof(float));
    }
    memset(d->chosen, 0xff, sizeof d->chosen);
    moe_position_choice choice = {.layout = layout_of(c),
                                  .key_offset = moe_kv_row_bytes(c->type, KEY),
                                  .queries = queries,
                                  /* Odd pools stand for indexers without weights. */
                                  .weights = c->pool % 2 == 1 ? NULL : d->weights[0],
                                  .n_head = HEADS,
                                  .dim = c->dim,
                                  .n_chosen = c->n_chosen,
                                  .block = c->block,
                                  .n_local = c->n_local,
                                  .pool = c->pool,
                                  .scores = d->scores,
                                  .n_scores = n_scores,
                                  .chosen = d->chosen};
    moe_cuda_choose(NULL, &choice, d->rows, ROWS, STORED);
    for (uint32_t r = 0; r < ROWS; r++) {
        for (uint32_t h = 0; c->block > 0 && h < HEADS; h++) {
            check_head(c, d, r, h);
        }
        if (c->block == 0) {
            check_row(c, d, r);
        }
    }
}

static void as_the_host_chooses(void **state)
{
    (void)state;
    static const choice_case cases[] = {
        {MOE_KV_F16, 64, 100, false, 0, 0, 0},   {MOE_KV_F16, 24, 1, true, 0, 0, 0},
        {MOE_KV_F32, 40, 333, true, 0, 0, 0},    {MOE_KV_F32, 16, 64, false, 0, 0, 0},
        {MOE_KV_Q8_0, 32, 70, false, 0, 0, 0},   {MOE_KV_Q8_0, 64, 500, true, 0, 0, 0},
        {MOE_KV_F16, 64, 256, false, 128, 1, 0}, {MOE_KV_F16, 24, 8, true, 2, 1, 0},
        {MOE_KV_F32, 40, 335, true, 67, 2, 0},   {MOE_KV_F32, 16, 60, false, 5, 3, 0},
        {MOE_KV_Q8_0, 32, 64, false, 16, 4, 0},  {MOE_KV_Q8_0, 64, 390, true, 130, 2, 0},
        {MOE_KV_F16, 64, 64, false, 0, 0, 16},   {MOE_KV_F32, 24, 12, true, 0, 0, 4},
        {MOE_KV_Q8_0, 32, 99, false, 0, 0, 3},   {MOE_KV_F16, 16, 192, true, 0, 0, 64},
    };
    choice_data *d = calloc(1, sizeof *d);
    for (uint32_t i = 0; i < PAGES; i++) {
        d->pages[i] = calloc(1, 64 + (size_t)MOE_KV_PAGE * (KEY + MOST) * sizeof(float));
    }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dice = (uint32_t)i + 1;
        fill(&cases[i], d);
        make_rows(&cases[i], d);
        const uint32_t block = cases[i].block;
        const size_t of_row = block > 0 ? HEADS * ((STORED + block - 1) / block) : STORED;
        check_case(&cases[i], d, i % 2 == 0 ? 2 * of_row : of_row);
    }
    for (uint32_t i = 0; i < PAGES; i++) {
        free(d->pages[i]);
    }
    free(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_the_host_chooses)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
