/* SPDX-License-Identifier: MIT */
/* Rows that attend together have the bits of rows that attend alone, whatever they share: a
 * prompt's rows, a batch of sessions with a common prefix, a tree's rows, windows, sinks, scales of
 * rows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "cpu/kernels/vector_ops.h"
#include "device_fixture.h"

#define N_POSITIONS 300u
#define N_PAGES     8u
#define DIM         32u
#define N_KV_HEAD   2u
#define MAX_HEAD    16u
#define N_PROMPT    150u /* rows of session A, the last ones of N_POSITIONS */
#define N_OTHER     3u   /* rows of session B, which shares the pages before FORK with A */
#define N_TREE      2u   /* rows that follow B's last position on paths of their own */
#define N_ROWS      (N_PROMPT + N_OTHER + N_TREE)
#define FORK        (3 * MOE_KV_PAGE)
#define B_POSITIONS (FORK + 70u) /* B has whole pages of its own, too */

typedef struct tile_case {
    uint32_t n_head;
    uint32_t window, chunk;
    bool sinks, scales;
} tile_case;

static const tile_case cases[] = {
    {2, 0, 0, false, false},  {4, 0, 0, true, false},  {16, 0, 0, false, false},
    {6, 0, 0, false, true},   {4, 70, 0, true, false}, {2, 0, 100, false, false},
    {16, 128, 0, true, true}, {2, 1, 0, false, false},
};

static float keys[N_POSITIONS * N_KV_HEAD * DIM], values[N_POSITIONS * N_KV_HEAD * DIM];
static float queries[N_ROWS * MAX_HEAD * DIM];
static float together[N_ROWS * MAX_HEAD * DIM], alone[MAX_HEAD * DIM];
static float sink_values[MAX_HEAD], scale_values[N_ROWS];
static uint32_t paths[N_TREE] = {5 * MOE_KV_PAGE + 40, 5 * MOE_KV_PAGE + 41};

typedef struct tiles {
    moe_device *device;
    moe_kv_layout layout;
    void *a_pages[N_PAGES]; /* of session A; B's first three are the same */
    void *b_pages[N_PAGES];
    moe_kv_row rows[N_ROWS];
    float *q, *out, *sinks;
} tiles;

static void store(tiles *t, uint32_t n, const moe_kv_row *rows, uint32_t first)
{
    size_t stride = (size_t)N_KV_HEAD * DIM, bytes = n * stride * sizeof(float);
    float *k = device_upload(t->device, keys + first * stride, bytes);
    float *v = device_upload(t->device, values + first * stride, bytes);
    assert_int_equal(
        t->device->ops->kv_store(t->device, &t->layout, rows, n, k, stride, v, stride, NULL),
        MOE_OK);
    assert_int_equal(t->device->ops->sync(t->device, NULL), MOE_OK);
    t->device->ops->free(t->device, k, bytes);
    t->device->ops->free(t->device, v, bytes);
}

static size_t page_bytes(const tiles *t)
{
    return 2 * t->layout.v_offset;
}

static void lay_out(tiles *t)
{
    size_t row = moe_kv_row_bytes(MOE_KV_F16, DIM);
    t->layout = (moe_kv_layout){.type = MOE_KV_F16,
                                .n_head_kv = N_KV_HEAD,
                                .k_dim = DIM,
                                .v_dim = DIM,
                                .k_row_bytes = row,
                                .v_row_bytes = row,
                                .v_offset = N_KV_HEAD * MOE_KV_PAGE * row};
    for (uint32_t p = 0; p < N_PAGES; p++) {
        t->a_pages[p] = device_alloc(t->device, page_bytes(t));
        t->b_pages[p] =
            p < FORK / MOE_KV_PAGE ? t->a_pages[p] : device_alloc(t->device, page_bytes(t));
    }
    static moe_kv_row all[N_POSITIONS];
    for (uint32_t i = 0; i < N_POSITIONS; i++) {
        all[i] = moe_kv_row_at(t->a_pages, i);
    }
    store(t, N_POSITIONS, all, 0);
    for (uint32_t i = 0; i < N_PROMPT; i++) {
        t->rows[i] = moe_kv_row_at(t->a_pages, N_POSITIONS - N_PROMPT + i);
    }
    for (uint32_t i = FORK; i < B_POSITIONS; i++) {
        all[i] = moe_kv_row_at(t->b_pages, i);
    }
    store(t, B_POSITIONS - FORK, all + FORK, 50); /* not A's keys and values */
    for (uint32_t i = 0; i < N_OTHER; i++) {
        t->rows[N_PROMPT + i] = moe_kv_row_at(t->b_pages, B_POSITIONS - N_OTHER + i);
    }
    for (uint32_t i = 0; i < N_TREE; i++) {
        t->rows[N_PROMPT + N_OTHER + i] = (moe_kv_row){.pages = t->b_pages,
                                                       .position = B_POSITIONS,
                                                       .stored = paths[i],
                                                       .path = &paths[i],
                                                       .path_first = B_POSITIONS};
    }
    store(t, N_TREE, t->rows + N_PROMPT + N_OTHER, 80);
}

/* Rows first .. first + n - 1 into out, [n][n_head][DIM]. */
static void attend(const tiles *t, const tile_case *c, uint32_t first, uint32_t n, float *out)
{
    moe_attention attention = {.layout = t->layout,
                               .rows = t->rows + first,
                               .q = t->q + (size_t)first * c->n_head * DIM,
                               .n_head = c->n_head,
                               .scale = 0.7f,
                               .window = c->window,
                               .chunk = c->chunk,
                               .sinks = c->sinks ? t->sinks : NULL,
                               .row_scales = c->scales ? scale_values + first : NULL,
                               .out = t->out};
    assert_int_equal(t->device->ops->attention(t->device, &attention, n, NULL), MOE_OK);
    assert_int_equal(t->device->ops->download(t->device, out, t->out,
                                              (size_t)n * c->n_head * DIM * sizeof(float), NULL),
                     MOE_OK);
}

static void check_device(const char *spec)
{
    device_fixture fixture;
    open_device(&fixture, spec);
    tiles t = {.device = fixture.device};
    moe_device_limits limits = {
        .linear = {N_ROWS, DIM}, .max_v_dim = DIM, .max_head_group = MAX_HEAD / N_KV_HEAD};
    assert_int_equal(t.device->ops->reserve(t.device, &limits, NULL), MOE_OK);
    lay_out(&t);
    t.q = device_upload(t.device, queries, sizeof queries);
    t.out = device_alloc(t.device, sizeof queries);
    t.sinks = device_upload(t.device, sink_values, sizeof sink_values);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t floats = (size_t)cases[i].n_head * DIM;
        attend(&t, &cases[i], 0, N_ROWS, together);
        for (uint32_t r = 0; r < N_ROWS; r++) {
            attend(&t, &cases[i], r, 1, alone);
            assert_memory_equal(together + r * floats, alone, floats * sizeof(float));
        }
    }
    for (uint32_t p = 0; p < N_PAGES; p++) {
        t.device->ops->free(t.device, t.a_pages[p], page_bytes(&t));
        if (p >= FORK / MOE_KV_PAGE) {
            t.device->ops->free(t.device, t.b_pages[p], page_bytes(&t));
        }
    }
    t.device->ops->free(t.device, t.q, sizeof queries);
    t.device->ops->free(t.device, t.out, sizeof queries);
    t.device->ops->free(t.device, t.sinks, sizeof sink_values);
    close_device(&fixture);
}

static void rows_together(void **state)
{
    (void)state;
    fill_values(keys, sizeof keys / sizeof keys[0], 3);
    fill_values(values, sizeof values / sizeof values[0], 4);
    fill_values(queries, sizeof queries / sizeof queries[0], 5);
    fill_values(sink_values, MAX_HEAD, 6);
    for (uint32_t i = 0; i < N_ROWS; i++) {
        scale_values[i] = 1.0f + (float)(i / 40) * 0.25f;
    }
    for (size_t i = 0; device_spec_at(i) != NULL; i++) {
        check_device(device_spec_at(i));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_together)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
