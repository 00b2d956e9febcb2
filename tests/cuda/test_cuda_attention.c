/* SPDX-License-Identifier: MIT */
/* The KV cache's kernels against the reference C bit by bit: storing, moving, and attention of rows
 * that decode, of prompts and of token trees, over every cache type, pages one after the other and
 * side by side. The kernels' sources run here as they are, under the emulation. */
#include "cpu/kernels/matmul.h"
#include "tests/cuda/attention_pages.h"
#include "tests/test_size.h"

static float sinks[64], row_scales[MAX_ROWS];

/* A NaN's payload may differ. */
static void assert_row_same(moe_kv_type type, const uint8_t *expected, const uint8_t *got,
                            uint32_t n)
{
    float a[1024], b[1024];
    moe_vector_kernels k;
    moe_vector_kernels_init(&k, 0);
    k.kv_load(type, expected, a, n);
    k.kv_load(type, got, b, n);
    test_assert_same("a row of the cache", "cuda", a, b, n);
    if (type == MOE_KV_Q8_0)
        assert_memory_equal(expected, got, moe_kv_row_bytes(type, n));
}

static void assert_same_cache(const cache *c, const timeline *line, uint32_t n_stored)
{
    moe_kv_type type = (moe_kv_type)c->layout.type;
    for (uint32_t p = 0; p < n_stored; p++)
        for (uint32_t h = 0; h < c->layout.n_head_kv; h++) {
            assert_row_same(type, key_at(c, line->twins, p, h), key_at(c, line->pages, p, h),
                            c->layout.k_dim);
            assert_row_same(type, value_at(c, line->twins, p, h), value_at(c, line->pages, p, h),
                            c->layout.v_dim);
        }
}

/* Stores rows by the kernel in the pages, by the reference in their twins. */
static void store_rows(cache *c, timeline *line, const moe_cuda_kv_row *rows, uint32_t n_rows,
                       uint64_t *seed, test_kind kind)
{
    const moe_kv_layout *l = &c->layout;
    size_t k_stride = (size_t)l->n_head_kv * l->k_dim + 3;
    size_t v_stride = (size_t)l->n_head_kv * l->v_dim;
    float *k = malloc(n_rows * k_stride * sizeof(float));
    float *v = malloc(n_rows * v_stride * sizeof(float));
    assert_non_null(k);
    assert_non_null(v);
    test_fill(seed, kind, k, (uint32_t)(n_rows * k_stride));
    test_fill(seed, kind, v, (uint32_t)(n_rows * v_stride));
    moe_cuda_kv_store(NULL, l, rows, n_rows, k, k_stride, v, v_stride);
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t h = 0; h < l->n_head_kv; h++) {
            moe_kv_type type = (moe_kv_type)l->type;
            c->reference.kv_store(type, k + r * k_stride + h * l->k_dim,
                                  key_at(c, line->twins, rows[r].stored, h), l->k_dim);
            if (!l->v_in_k)
                c->reference.kv_store(type, v + r * v_stride + h * l->v_dim,
                                      value_at(c, line->twins, rows[r].stored, h), l->v_dim);
        }
    free(k);
    free(v);
}

/* One row and head, after the contract: attend_page over lists of rows, attend_merge, 1 / sum. */
static void expect_head(const cache *c, const mask *m, const moe_cuda_kv_row *row, uint32_t kv_head,
                        const float *sink, const float *q, float scale, float *out)
{
    const moe_kv_layout *l = &c->layout;
    float max = sink != NULL ? *sink + 0.0f : -INFINITY, sum = sink != NULL ? 1.0f : 0.0f;
    float page_max, page_sum, page_out[1024];
    memset(out, 0, l->v_dim * sizeof(float));
    moe_attention seen = {.window = m->window, .chunk = m->chunk};
    uint32_t next;
    for (uint32_t first = moe_attention_first(&seen, row->position); first <= row->position;
         first = next) {
        const void *keys[MOE_KV_PAGE], *values[MOE_KV_PAGE];
        next = (first / MOE_KV_PAGE + 1) * MOE_KV_PAGE;
        uint32_t n = (next <= row->position ? next : row->position + 1) - first;
        for (uint32_t j = 0; j < n; j++) {
            bool strays = row->path != NULL && first + j >= row->path_first;
            uint32_t stored = strays ? row->path[first + j - row->path_first] : first + j;
            keys[j] = key_at(c, row->pages, stored, kv_head);
            values[j] = value_at(c, row->pages, stored, kv_head);
        }
        c->reference.attend_page(&(moe_attend_args){.type = (moe_kv_type)l->type,
                                                    .k_rows = keys,
                                                    .v_rows = values,
                                                    .k_row_bytes = l->k_row_bytes,
                                                    .v_row_bytes = l->v_row_bytes,
                                                    .k_dim = l->k_dim,
                                                    .v_dim = l->v_dim,
                                                    .n_valid = n,
                                                    .n_q = 1,
                                                    .q = q,
                                                    .scale = scale,
                                                    .cap = m->cap,
                                                    .max = &page_max,
                                                    .sum = &page_sum,
                                                    .out = page_out});
        c->reference.attend_merge(&max, &sum, out, page_max, page_sum, page_out, l->v_dim);
    }
    c->reference.scale(1.0f / sum, out, l->v_dim);
}

static uint32_t n_quantised; /* calls of attention that gave quantised rows, too */

/* What attention has quantised against the reference's quantisation of what is expected. */
static void assert_quantised(const moe_q8_rows *got, const float *expected)
{
    for (size_t i = 0; i < (size_t)got->n_rows * got->n_in; i++)
        if (!isfinite(expected[i]))
            return; /* unspecified */
    moe_matmul_kernels reference;
    moe_q8_rows rows;
    size_t padded = (size_t)got->n_rows * got->n_in_padded;
    void *memory = aligned_alloc(64, align64(moe_q8_rows_bytes(got->n_rows, got->n_in)));
    assert_non_null(memory);
    moe_q8_rows_bind(&rows, memory, got->n_rows, got->n_in);
    moe_matmul_kernels_init(&reference, 0);
    reference.quantize_rows(expected, got->n_in, got->n_rows, got->n_in, &rows, 0);
    assert_memory_equal(got->q, rows.q, padded);
    assert_memory_equal(got->d, rows.d, padded / 32 * sizeof(float));
    assert_memory_equal(got->sum16, rows.sum16, padded / 16 * sizeof(int32_t));
    assert_memory_equal(got->sum32, rows.sum32, padded / 32 * sizeof(int32_t));
    assert_memory_equal(got->dsum16, rows.dsum16, padded / 16 * sizeof(float));
    assert_memory_equal(got->dsum32, rows.dsum32, padded / 32 * sizeof(float));
    free(memory);
    n_quantised++;
}

/* Runs the rows every way there is and holds each result to the reference. */
static void attend_masked(const cache *c, const shape *s, const mask *m,
                          const moe_cuda_kv_row *rows, uint32_t n_rows, bool shared_pages,
                          uint64_t *seed, test_kind kind)
{
    static const uint32_t multiprocessors[] = {0, 1, 132}; /* 0: no workspace */
    size_t n_q = (size_t)n_rows * s->n_head;
    float *q = malloc(n_q * s->k_dim * sizeof(float));
    float *expected = malloc(n_q * s->v_dim * sizeof(float));
    float *got = malloc((n_q * s->v_dim + 1) * sizeof(float));
    assert_true(q != NULL && expected != NULL && got != NULL);
    test_fill(seed, kind == TEST_WILD ? TEST_FINITE : kind, q, (uint32_t)(n_q * s->k_dim));
    uint32_t n_visible = 0, first_visible = UINT32_MAX;
    moe_attention seen = {.window = m->window, .chunk = m->chunk};
    for (uint32_t r = 0; r < n_rows; r++) {
        uint32_t from = moe_attention_first(&seen, rows[r].position);
        first_visible = from < first_visible ? from : first_visible;
        n_visible = rows[r].position + 1 > n_visible ? rows[r].position + 1 : n_visible;
        for (uint32_t h = 0; h < s->n_head; h++)
            expect_head(c, m, &rows[r], h / (s->n_head / s->n_head_kv), m->sinks ? &sinks[h] : NULL,
                        q + (r * s->n_head + h) * s->k_dim,
                        m->row_scales ? 0.088f * row_scales[r] : 0.088f,
                        expected + (r * s->n_head + h) * s->v_dim);
    }
    for (uint32_t i = 0; i < 3; i++) {
        if (i == 1 && n_rows > 1) /* blocks enough for one multiprocessor: as without workspace */
            continue;
        size_t workspace_bytes = moe_cuda_attention_workspace(multiprocessors[i], s->v_dim);
        void *workspace = i == 0 ? NULL : malloc(workspace_bytes);
        memset(got, 0xff, (n_q * s->v_dim + 1) * sizeof(float));
        moe_cuda_attention attention = {.layout = c->layout,
                                        .rows = rows,
                                        .n_rows = n_rows,
                                        .n_visible =
                                            n_visible + (i == 2 ? 300 : 0), /* a bound does */
                                        .first_visible = i == 2 ? 0 : first_visible,
                                        .shared_pages = shared_pages,
                                        .q = q,
                                        .n_head = s->n_head,
                                        .scale = 0.088f,
                                        .cap = m->cap,
                                        .window = m->window,
                                        .chunk = m->chunk,
                                        .sinks = m->sinks ? sinks : NULL,
                                        .row_scales = m->row_scales ? row_scales : NULL,
                                        .out = got,
                                        .workspace = workspace,
                                        .n_multiprocessors = multiprocessors[i]};
        uint32_t n = s->n_head * s->v_dim;
        void *q8_memory = NULL;
        if (s->v_dim % MOE_Q8_BLOCK == 0) {
            q8_memory = aligned_alloc(64, align64(moe_q8_rows_bytes(n_rows, n)));
            assert_non_null(q8_memory);
            memset(q8_memory, 0x55, moe_q8_rows_bytes(n_rows, n));
            moe_q8_rows_bind(&attention.out_q8, q8_memory, n_rows, n);
        }
        if (moe_cuda_attend(NULL, &attention))
            assert_quantised(&attention.out_q8, expected);
        free(q8_memory);
        test_assert_same("attention", i == 0 ? "folded at once" : "pages side by side", expected,
                         got, (uint32_t)(n_q * s->v_dim));
        assert_int_equal(test_bits_of(got[n_q * s->v_dim]), 0xffffffffu);
        free(workspace);
    }
    free(q);
    free(expected);
    free(got);
}

static void attend_and_compare(const cache *c, const shape *s, const moe_cuda_kv_row *rows,
                               uint32_t n_rows, bool shared_pages, uint64_t *seed, test_kind kind)
{
    static const mask all;
    attend_masked(c, s, &all, rows, n_rows, shared_pages, seed, kind);
}

static const moe_kv_type types[] = {MOE_KV_F16, MOE_KV_F32, MOE_KV_Q8_0};

static void stores_and_moves(void **state)
{
    (void)state;
    static const shape shapes[] = {
        {4, 2, 64, 64, false}, {4, 1, 96, 64, true}, {3, 3, 33, 7, false}};
    uint64_t seed = 0x243f6a8885a308d3u;
    for (uint32_t i = 0; i < 9 * TEST_KINDS; i++) {
        const shape *s = &shapes[i / 3 % 3];
        if (types[i % 3] == MOE_KV_Q8_0 && s->k_dim % MOE_KV_Q8_BLOCK != 0)
            continue;
        cache c;
        cache_open(&c, types[i % 3], s, 1);
        moe_cuda_kv_row rows[200];
        for (uint32_t r = 0; r < 200; r++)
            rows[r] = (moe_cuda_kv_row){.pages = c.lines->pages, .position = 199, .stored = r};
        store_rows(&c, c.lines, rows, 200, &seed, (test_kind)(i / 9));
        assert_same_cache(&c, c.lines, 200);
        /* A chain through a tree at 120: what is moved is the source of a later move, too. */
        uint32_t from[] = {120, 121, 124, 125, 130, 150, 199};
        uint32_t to[] = {119, 121, 122, 123, 124, 125, 126};
        moe_kv_layout layouts[1] = {c.layout};
        moe_kv_move move = {.layouts = layouts,
                            .n_layouts = 1,
                            .pages = c.lines->pages,
                            .from = from,
                            .to = to,
                            .n = 7};
        moe_cuda_kv_move(NULL, &move, s->n_head_kv);
        for (uint32_t m = 0; m < 7; m++)
            for (uint32_t h = 0; h < s->n_head_kv; h++) {
                memmove(key_at(&c, c.lines->twins, to[m], h),
                        key_at(&c, c.lines->twins, from[m], h), c.layout.k_row_bytes);
                if (!s->v_in_k)
                    memmove(value_at(&c, c.lines->twins, to[m], h),
                            value_at(&c, c.lines->twins, from[m], h), c.layout.v_row_bytes);
            }
        assert_same_cache(&c, c.lines, 200);
        cache_close(&c);
    }
}

static const shape shapes[] = {
    {1, 1, 64, 64, false},   {8, 1, 128, 128, false}, {6, 2, 40, 24, false},
    {20, 1, 96, 70, false},  {16, 1, 576, 512, true}, {4, 4, 33, 1, false},
    {18, 1, 320, 256, true}, {5, 1, 1000, 17, false},
};
#define N_SHAPES (sizeof(shapes) / sizeof(shapes[0]))

static bool fits(moe_kv_type type, const shape *s)
{
    return type != MOE_KV_Q8_0 ||
           (s->k_dim % MOE_KV_Q8_BLOCK == 0 && s->v_dim % MOE_KV_Q8_BLOCK == 0);
}

/* Rows of several sessions, each at its own place. */
static void rows_that_decode(void **state)
{
    (void)state;
    static const uint32_t contexts[] = {1, 63, 64, 65, 1000};
    uint64_t seed = 0x13198a2e03707344u;
    for (uint32_t i = 0; i < 3 * N_SHAPES; i++) {
        const shape *s = &shapes[i / 3];
        test_kind kind = (test_kind)(i % 4 % TEST_KINDS);
        if (!fits(types[i % 3], s) || test_leaves_out(i, 4))
            continue;
        cache c;
        cache_open(&c, types[i % 3], s, 5);
        moe_cuda_kv_row rows[5];
        bool small = s->n_head * s->k_dim < 1100;
        for (uint32_t r = 0; r < 5; r++) {
            uint32_t n = small || contexts[r] < 100 ? contexts[r] : 200;
            fill_line(&c, &c.lines[r], n, &seed, kind);
            rows[r] = (moe_cuda_kv_row){.pages = c.lines[r].pages, .position = n - 1};
        }
        attend_and_compare(&c, s, rows, 5, i & 1, &seed, kind);
        cache_close(&c);
    }
}

/* Neighbouring positions of one timeline, across the ends of pages. */
static void rows_of_a_prompt(void **state)
{
    (void)state;
    static const uint32_t firsts[] = {0, 60, 64, 130};
    static const uint32_t counts[] = {65, 2, 33, 7};
    uint64_t seed = 0xa4093822299f31d0u;
    for (uint32_t i = 0; i < 3 * N_SHAPES; i++) {
        const shape *s = &shapes[i / 3];
        if (!fits(types[i % 3], s) || test_leaves_out(i, 4))
            continue;
        cache c;
        cache_open(&c, types[i % 3], s, 1);
        moe_cuda_kv_row rows[MAX_ROWS];
        uint32_t n_rows = s->n_head * s->k_dim > 2000 ? counts[i % 4] / 3 + 1 : counts[i % 4];
        fill_line(&c, c.lines, firsts[i % 4] + n_rows, &seed, i % 5 == 0 ? TEST_WILD : TEST_PLAIN);
        for (uint32_t r = 0; r < n_rows; r++)
            rows[r] = (moe_cuda_kv_row){.pages = c.lines->pages, .position = firsts[i % 4] + r};
        attend_and_compare(&c, s, rows, n_rows, i % 4 != 3, &seed, TEST_PLAIN);
        cache_close(&c);
    }
}

static void rows_of_a_tree(void **state)
{
    (void)state;
    static const uint32_t bases[] = {0, 50, 127, 300};
    uint64_t seed = 0x082efa98ec4e6c89u;
    for (uint32_t i = 0; i < 3 * N_SHAPES; i++) {
        const shape *s = &shapes[i / 3];
        if (!fits(types[i % 3], s) || test_leaves_out(i, 4))
            continue;
        static tree nodes;
        moe_cuda_kv_row rows[MAX_ROWS];
        cache c;
        cache_open(&c, types[i % 3], s, 1);
        uint32_t base = bases[i % 4];
        uint32_t n = s->n_head * s->k_dim > 300 ? 6 : MAX_ROWS;
        fill_line(&c, c.lines, base + n, &seed, TEST_PLAIN);
        grow_tree(&nodes, c.lines, base, n, &seed, rows);
        attend_and_compare(&c, s, rows, n, true, &seed, TEST_PLAIN);
        cache_close(&c);
    }
}

/* So long that the parts of the pages come in several waves. */
static void a_long_context(void **state)
{
    (void)state;
    static const shape s = {16, 1, 32, 32, false};
    uint64_t seed = 0x452821e638d01377u;
    cache c;
    cache_open(&c, MOE_KV_F16, &s, 1);
    fill_line(&c, c.lines, 64 * MAX_PAGES, &seed, TEST_PLAIN);
    moe_cuda_kv_row row = {.pages = c.lines->pages, .position = 64 * MAX_PAGES - 3};
    attend_and_compare(&c, &s, &row, 1, false, &seed, TEST_PLAIN);
    cache_close(&c);
}

/* Windows, chunks, sinks, caps and rows' scales: single rows, prompts and trees over pages that
 * hold NaNs, or are not there at all, where no row looks. */
static void masked_rows(void **state)
{
    (void)state;
    static const mask masks[] = {{.window = 5},
                                 {.window = 64, .sinks = true},
                                 {.window = 130, .cap = 3.5f},
                                 {.sinks = true},
                                 {.chunk = 48},
                                 {.chunk = 128, .row_scales = true},
                                 {.cap = 20.0f},
                                 {.window = 1, .sinks = true},
                                 {.window = 100, .chunk = 96},
                                 {.window = 33, .cap = 1.0f, .sinks = true, .row_scales = true}};
    static const shape masked[] = {{4, 1, 64, 64, false},
                                   {16, 2, 33, 20, false},
                                   {16, 1, 96, 64, true},
                                   {1, 1, 32, 32, false}};
    uint64_t seed = 0xbe5466cf34e90c6cu;
    test_fill(&seed, TEST_PLAIN, sinks, 64);
    test_fill(&seed, TEST_PLAIN, row_scales, MAX_ROWS);
    for (uint32_t i = 0; i < 10 * 4 * 2; i++) {
        const mask *m = &masks[i % 10];
        const shape *s = &masked[i / 10 % 4];
        bool prompt = i >= 40;
        uint32_t base = prompt ? 200 + 7 * (i % 5) : 500;
        uint32_t n_rows = prompt ? 37 : 3;
        if (test_leaves_out(i, 3))
            continue;
        cache c;
        cache_open(&c, types[i % 2], s, 1);
        fill_line(&c, c.lines, base + 3 * n_rows, &seed, TEST_PLAIN);
        moe_cuda_kv_row rows[MAX_ROWS];
        moe_attention seen = {.window = m->window, .chunk = m->chunk};
        for (uint32_t r = 0; r < n_rows; r++)
            rows[r] = (moe_cuda_kv_row){.pages = c.lines->pages,
                                        .position = base + (prompt ? r : 97 * r % 300)};
        uint32_t least = UINT32_MAX;
        for (uint32_t r = 0; r < n_rows; r++) {
            uint32_t from = moe_attention_first(&seen, rows[r].position);
            least = from < least ? from : least;
        }
        void *missing[MAX_PAGES];
        memcpy(missing, c.lines->pages, sizeof missing);
        for (uint32_t p = 0; p < least / MOE_KV_PAGE; p++)
            missing[p] = NULL;
        for (uint32_t r = 0; r < n_rows; r++)
            rows[r].pages = missing;
        if (!prompt)
            fill_line(&c, c.lines, base + 300, &seed, TEST_PLAIN);
        attend_masked(&c, s, m, rows, n_rows, i % 3 != 0, &seed, TEST_PLAIN);
        cache_close(&c);
    }
}

static void pages_quantise(void **state)
{
    (void)state;
    assert_true(n_quantised > 20); /* by the tests before */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stores_and_moves), cmocka_unit_test(rows_that_decode),
        cmocka_unit_test(rows_of_a_prompt), cmocka_unit_test(rows_of_a_tree),
        cmocka_unit_test(a_long_context),   cmocka_unit_test(masked_rows),
        cmocka_unit_test(pages_quantise),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
