/* SPDX-License-Identifier: MIT */
/* Attention of few rows to long texts, which threads share page by page, has the bits of the
 * reference that walks the pages in order: for every number of threads, with windows, chunks,
 * sinks, scales of rows, rows on paths of their own, and more pages than a round takes. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cpu/cpu_device.h"
#include "cpu/kernels/cpu_features.h"
#include "cpu/kernels/vector_reference.h"
#include "device_fixture.h"

#define N_PAGES     70u
#define N_POSITIONS (N_PAGES * MOE_KV_PAGE - 20)
#define K_DIM       48u
#define V_DIM       40u
#define MAX_KV_HEAD 2u
#define MAX_HEAD    24u
#define MAX_ROWS    4u
#define ROW_BYTES   (K_DIM * 2u) /* f16 */
#define PAGE_BYTES  (2 * MAX_KV_HEAD * MOE_KV_PAGE * ROW_BYTES)

typedef struct page_case {
    uint32_t n_head, n_head_kv, n_rows;
    uint32_t window, chunk;
    bool sinks, scales, v_in_k;
    bool path; /* the last row is a node behind the last position but one */
} page_case;

static const page_case cases[] = {
    {16, 1, 1, 0, 0, false, false, true, false},
    {8, 2, 1, 0, 0, true, false, false, false},
    {1, 1, 1, 0, 0, false, false, false, false},
    {24, 1, 3, 0, 0, true, true, true, true},
    {16, 1, 4, 1500, 0, true, false, false, false},
    {8, 2, 2, 0, 1000, false, false, false, false},
    {4, 2, 2, 0, 0, false, true, false, true},
    {24, 2, 2, 300, 0, false, false, false, false}, /* sees too few pages to share */
};

typedef struct text {
    uint8_t *memory;
    void *pages[N_PAGES];
    float q[MAX_ROWS * MAX_HEAD * K_DIM];
    float sinks[MAX_HEAD], scales[MAX_ROWS];
    float out[MAX_ROWS * MAX_HEAD * V_DIM], expected[MAX_ROWS * MAX_HEAD * V_DIM];
    uint32_t path[2];
    moe_kv_row rows[MAX_ROWS];
} text;

static moe_kv_layout layout_of(const page_case *c)
{
    size_t v_offset = (size_t)c->n_head_kv * MOE_KV_PAGE * ROW_BYTES;
    return (moe_kv_layout){.type = MOE_KV_F16,
                           .n_head_kv = c->n_head_kv,
                           .k_dim = K_DIM,
                           .v_dim = V_DIM,
                           .k_row_bytes = ROW_BYTES,
                           .v_row_bytes = ROW_BYTES,
                           .v_offset = c->v_in_k ? 0 : v_offset,
                           .v_in_k = c->v_in_k};
}

static void make_text(text *t)
{
    t->memory = malloc((size_t)N_PAGES * PAGE_BYTES);
    assert_non_null(t->memory);
    float row[K_DIM];
    for (uint32_t r = 0; r < N_PAGES * (PAGE_BYTES / ROW_BYTES); r++) {
        fill_values(row, K_DIM, r);
        for (uint32_t i = 0; i < K_DIM; i++) {
            row[i] *= 1.0f + (float)(r % 97); /* so that the maxima rise and fall */
        }
        moe_kv_store_c(MOE_KV_F16, row, t->memory + (size_t)r * ROW_BYTES, K_DIM);
    }
    for (uint32_t p = 0; p < N_PAGES; p++) { /* not in the order of the memory */
        t->pages[p] = t->memory + (size_t)(p * 37 % N_PAGES) * PAGE_BYTES;
    }
    fill_values(t->q, sizeof t->q / sizeof t->q[0], 7);
    fill_values(t->sinks, MAX_HEAD, 8);
    fill_values(t->scales, MAX_ROWS, 9);
}

static void place_rows(text *t, const page_case *c)
{
    for (uint32_t r = 0; r < c->n_rows; r++) {
        t->rows[r] = moe_kv_row_at(t->pages, N_POSITIONS - 10 * c->n_rows + 10 * r);
    }
    if (c->path) {
        moe_kv_row *last = &t->rows[c->n_rows - 1];
        t->path[0] = N_POSITIONS - 200; /* stored in another page than its place */
        t->path[1] = last->stored = N_POSITIONS - 1;
        last->path = t->path;
        last->path_first = last->position - 1;
    }
}

static moe_attention attention_of(text *t, const page_case *c)
{
    return (moe_attention){.layout = layout_of(c),
                           .rows = t->rows,
                           .q = t->q,
                           .n_head = c->n_head,
                           .scale = 0.11f,
                           .window = c->window,
                           .chunk = c->chunk,
                           .sinks = c->sinks ? t->sinks : NULL,
                           .row_scales = c->scales ? t->scales : NULL,
                           .out = t->out};
}

/* One query, page by page. */
static void reference(const moe_attention *a, uint32_t r, uint32_t head, float *out)
{
    const moe_kv_row *kv = &a->rows[r];
    const moe_kv_layout *layout = &a->layout;
    uint32_t kv_head = head / (a->n_head / layout->n_head_kv);
    float max = a->sinks != NULL ? a->sinks[head] : -INFINITY;
    float sum = a->sinks != NULL ? 1.0f : 0.0f;
    memset(out, 0, V_DIM * sizeof *out);
    for (uint32_t at = moe_attention_first(a, kv->position), end; at <= kv->position; at = end) {
        end = (at / MOE_KV_PAGE + 1) * MOE_KV_PAGE;
        end = end < kv->position + 1 ? end : kv->position + 1;
        const void *k[MOE_KV_PAGE], *v[MOE_KV_PAGE];
        float page_max, page_sum, page_out[V_DIM];
        for (uint32_t j = at; j < end; j++) {
            uint32_t stored = moe_kv_row_stored(kv, j);
            const uint8_t *page = kv->pages[stored / MOE_KV_PAGE];
            size_t slot = (size_t)kv_head * MOE_KV_PAGE + stored % MOE_KV_PAGE;
            k[j - at] = page + slot * ROW_BYTES;
            v[j - at] = page + layout->v_offset + slot * ROW_BYTES;
        }
        moe_attend_args args = {.type = MOE_KV_F16,
                                .k_rows = k,
                                .v_rows = v,
                                .k_dim = K_DIM,
                                .v_dim = V_DIM,
                                .n_valid = end - at,
                                .n_q = 1,
                                .q = a->q + ((size_t)r * a->n_head + head) * K_DIM,
                                .scale = a->scale * (a->row_scales ? a->row_scales[r] : 1.0f),
                                .max = &page_max,
                                .sum = &page_sum,
                                .out = page_out};
        moe_attend_page_c(&args);
        moe_attend_merge_c(&max, &sum, out, page_max, page_sum, page_out, V_DIM);
    }
    for (uint32_t i = 0; i < V_DIM; i++) {
        out[i] = 1.0f / sum * out[i];
    }
}

static void check_case(text *t, const page_case *c)
{
    place_rows(t, c);
    moe_attention a = attention_of(t, c);
    for (uint32_t q = 0; q < c->n_rows * c->n_head; q++) {
        reference(&a, q / c->n_head, q % c->n_head, t->expected + (size_t)q * V_DIM);
    }
    for (uint32_t threads = 1; threads <= 3; threads++) {
        moe_team *team;
        moe_device *device;
        moe_error err = {""};
        assert_int_equal(moe_team_create(&team, threads, &err), MOE_OK);
        moe_cpu_device_options options = {.team = team, .cpu_features = moe_cpu_features()};
        assert_int_equal(moe_cpu_device_open(&device, &options, &err), MOE_OK);
        moe_device_limits limits = {.linear = {MAX_ROWS, 64},
                                    .max_v_dim = K_DIM,
                                    .max_head_group = c->n_head / c->n_head_kv};
        assert_int_equal(device->ops->reserve(device, &limits, &err), MOE_OK);
        for (uint32_t again = 0; again < 2; again++) {
            memset(t->out, 0xff, sizeof t->out);
            assert_int_equal(device->ops->attention(device, &a, c->n_rows, &err), MOE_OK);
            assert_memory_equal(t->out, t->expected,
                                (size_t)c->n_rows * c->n_head * V_DIM * sizeof(float));
        }
        device->ops->close(device);
        moe_team_destroy(&team);
    }
}

static void shared_pages(void **state)
{
    (void)state;
    static text t;
    make_text(&t);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        check_case(&t, &cases[i]);
    }
    free(t.memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(shared_pages)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
