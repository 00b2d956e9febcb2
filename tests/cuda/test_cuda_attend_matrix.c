/* SPDX-License-Identifier: MIT */
/* Attention by matrix units. The stated order of attend_matrix.cu, written down once more in plain
 * C for one row and head: rows that decode, prompts, trees and masks must have its bits however
 * they are cut into launches. A softmax in doubles shows that these bits are near the truth. */
#include "cpu/kernels/kv_half.h"
#include "cuda/kernels/exp2_constants.h"
#include "tests/cuda/attention_pages.h"
#include "tests/test_size.h"

#ifndef OWN_ORDER
#define OWN_ORDER false /* true: the kernels run on a GPU */
#endif
#define STRETCH 256u
#define MAX_DIM 256u

static float sinks[64], row_scales[MAX_ROWS];

static float half_of(float x)
{
    return moe_half_to_float(moe_float_to_half(x));
}

static float power_of_two(float x)
{
    float limited = x > MOE_EXP2_LOW ? x : MOE_EXP2_LOW;
    float rounded = limited + MOE_EXP2_ROUND;
    float f = limited - (rounded - MOE_EXP2_ROUND);
    float p = fmaf(MOE_EXP2_C5, f, MOE_EXP2_C4);
    p = fmaf(p, f, MOE_EXP2_C3);
    p = fmaf(p, f, MOE_EXP2_C2);
    p = fmaf(p, f, MOE_EXP2_C1);
    p = fmaf(p, f, 1.0f);
    return test_float_of(test_bits_of(p) + (test_bits_of(rounded) << 23));
}

static float factor_between(float from, float to)
{
    return from == -INFINITY ? 0.0f : power_of_two(from - to);
}

/* Where a row finds a logical position. */
static uint32_t stored_at(const moe_cuda_kv_row *row, uint32_t position)
{
    bool strays = row->path != NULL && position >= row->path_first;
    return strays ? row->path[position - row->path_first] : position;
}

typedef struct head_case {
    const cache *c;
    const moe_cuda_kv_row *row;
    uint32_t kv_head;
    uint32_t first; /* the first position that the row sees */
    const float *q;
    const float *sink; /* or NULL */
    float scale;
} head_case;

typedef struct running {
    float max, sum, out[MAX_DIM];
} running;

/* One page of a stretch. q: halves; factor: of scores. */
static void take_page(const head_case *h, uint32_t page, const float *q, float factor, running *r)
{
    const moe_kv_layout *l = &h->c->layout;
    float scores[MOE_KV_PAGE], values[MOE_KV_PAGE][MAX_DIM] = {{0}}, top = -INFINITY;
    for (uint32_t j = 0; j < MOE_KV_PAGE; j++) {
        const uint32_t position = page * MOE_KV_PAGE + j;
        scores[j] = -INFINITY;
        if (position < h->first || position > h->row->position)
            continue;
        const uint32_t stored = stored_at(h->row, position);
        const uint16_t *key = (const uint16_t *)key_at(h->c, h->row->pages, stored, h->kv_head);
        const uint16_t *value = (const uint16_t *)value_at(h->c, h->row->pages, stored, h->kv_head);
        scores[j] = 0.0f;
        for (uint32_t i = 0; i < l->k_dim; i++)
            scores[j] += q[i] * moe_half_to_float(key[i]);
        for (uint32_t i = 0; i < l->v_dim; i++)
            values[j][i] = moe_half_to_float(value[i]);
        top = fmaxf(top, scores[j]);
    }
    const float max = fmaxf(r->max, top * factor);
    const float base = max == -INFINITY ? 0.0f : max;
    const float keep = power_of_two(r->max - base);
    r->max = max;
    r->sum = fmaf(r->sum, keep, 0.0f);
    for (uint32_t i = 0; i < l->v_dim; i++)
        r->out[i] = fmaf(r->out[i], keep, 0.0f);
    for (uint32_t j = 0; j < MOE_KV_PAGE; j++) {
        const float weight = half_of(power_of_two(fmaf(scores[j], factor, -base)));
        r->sum += weight;
        for (uint32_t i = 0; i < l->v_dim; i++)
            r->out[i] += weight * values[j][i];
    }
}

static void expect_head(const head_case *h, float *out)
{
    const moe_kv_layout *l = &h->c->layout;
    float q[MAX_DIM], greatest = 0.0f;
    for (uint32_t i = 0; i < l->k_dim; i++)
        greatest = fmaxf(greatest, fabsf(h->q[i]));
    int exponent = 0;
    if (greatest >= 0x1p-126f)
        (void)frexpf(greatest, &exponent);
    else
        exponent = 1;
    const float unit = ldexpf(1.0f, exponent - 1);
    for (uint32_t i = 0; i < l->k_dim; i++)
        q[i] = half_of(h->q[i] / unit);
    const float factor = h->scale * MOE_LOG2_OF_E * unit;
    float max = h->sink != NULL ? *h->sink * MOE_LOG2_OF_E : -INFINITY;
    float sum = h->sink != NULL ? 1.0f : 0.0f;
    memset(out, 0, l->v_dim * sizeof(*out));
    for (uint32_t s = h->first / STRETCH; s <= h->row->position / STRETCH; s++) {
        running r = {.max = -INFINITY};
        for (uint32_t page = s * 4; page < s * 4 + 4; page++)
            if (page <= h->row->position / MOE_KV_PAGE && page >= h->first / MOE_KV_PAGE)
                take_page(h, page, q, factor, &r);
        const float to = r.max > max ? r.max : max;
        const float keep = factor_between(max, to), take = factor_between(r.max, to);
        max = to;
        sum = fmaf(sum, keep, r.sum * take);
        for (uint32_t i = 0; i < l->v_dim; i++)
            out[i] = fmaf(out[i], keep, r.out[i] * take);
    }
    const float scale = 1.0f / sum;
    for (uint32_t i = 0; i < l->v_dim; i++)
        out[i] = scale * out[i];
}

/* The same head in doubles, from the floats of the query. */
static void exact_head(const head_case *h, double *out)
{
    const moe_kv_layout *l = &h->c->layout;
    double max = h->sink != NULL ? *h->sink : -INFINITY, sum = 0.0;
    const uint32_t n = h->row->position + 1 - h->first;
    double *scores = calloc(n, sizeof(*scores));
    assert_non_null(scores);
    for (uint32_t j = 0; j < n; j++) {
        const uint32_t stored = stored_at(h->row, h->first + j);
        const uint16_t *key = (const uint16_t *)key_at(h->c, h->row->pages, stored, h->kv_head);
        for (uint32_t i = 0; i < l->k_dim; i++)
            scores[j] += (double)h->q[i] * (double)moe_half_to_float(key[i]);
        scores[j] *= (double)h->scale;
        max = fmax(max, scores[j]);
    }
    sum = h->sink != NULL ? exp(*h->sink - max) : 0.0;
    memset(out, 0, l->v_dim * sizeof(*out));
    for (uint32_t j = 0; j < n; j++) {
        const uint32_t stored = stored_at(h->row, h->first + j);
        const uint16_t *value = (const uint16_t *)value_at(h->c, h->row->pages, stored, h->kv_head);
        const double weight = exp(scores[j] - max);
        sum += weight;
        for (uint32_t i = 0; i < l->v_dim; i++)
            out[i] += weight * (double)moe_half_to_float(value[i]);
    }
    for (uint32_t i = 0; i < l->v_dim; i++)
        out[i] /= sum;
    free(scores);
}

/* Within this part of the greatest value, 4: halves have 11 bits, and errors of scores of this size
 * are as great. */
#define NEAR 0x1p-8

static double greatest_error; /* of all cases */

static void assert_near(const head_case *h, const float *got)
{
    double exact[MAX_DIM];
    exact_head(h, exact);
    for (uint32_t i = 0; i < h->c->layout.v_dim; i++) {
        double error = fabs(exact[i] - (double)got[i]) / 4.0;
        greatest_error = error > greatest_error ? error : greatest_error;
        if (!(error <= NEAR))
            fail_msg("element %u is %g, exactly %g", i, (double)got[i], exact[i]);
    }
}

typedef struct rows_case {
    const cache *c;
    const shape *s;
    const mask *m;
    const moe_cuda_kv_row *rows;
    uint32_t n_rows;
} rows_case;

/* The reference of all rows and heads; near: also holds it to the exact result. */
static void expect_rows(const rows_case *r, const float *q, bool near, float *expected,
                        moe_cuda_attention *attention)
{
    moe_attention seen = {.window = r->m->window, .chunk = r->m->chunk};
    attention->first_visible = UINT32_MAX;
    for (uint32_t i = 0; i < r->n_rows * r->s->n_head; i++) {
        const moe_cuda_kv_row *row = &r->rows[i / r->s->n_head];
        const uint32_t head = i % r->s->n_head;
        head_case h = {.c = r->c,
                       .row = row,
                       .kv_head = head / (r->s->n_head / r->s->n_head_kv),
                       .first = moe_attention_first(&seen, row->position),
                       .q = q + i * r->s->k_dim,
                       .sink = r->m->sinks ? &sinks[head] : NULL,
                       .scale = r->m->row_scales ? 0.088f * row_scales[i / r->s->n_head] : 0.088f};
        expect_head(&h, expected + i * r->s->v_dim);
        if (near)
            assert_near(&h, expected + i * r->s->v_dim);
        if (h.first < attention->first_visible)
            attention->first_visible = h.first;
        if (row->position >= attention->n_visible)
            attention->n_visible = row->position + 1;
    }
}

/* Runs the rows in pieces of at most `piece`. */
static float *results_of(const rows_case *r, const moe_cuda_attention *all,
                         uint32_t multiprocessors, bool shared_pages, uint32_t piece)
{
    size_t n = (size_t)r->n_rows * r->s->n_head * r->s->v_dim;
    float *got = malloc((n + 1) * sizeof(float));
    void *workspace = malloc(moe_cuda_attention_workspace(multiprocessors, r->s->v_dim) + 1);
    assert_true(got != NULL && workspace != NULL);
    memset(got, 0xff, (n + 1) * sizeof(float));
    for (uint32_t first = 0; first < r->n_rows; first += piece) {
        moe_cuda_attention attention = *all;
        attention.rows += first;
        attention.n_rows = r->n_rows - first < piece ? r->n_rows - first : piece;
        attention.q += (size_t)first * r->s->n_head * r->s->k_dim;
        attention.row_scales = r->m->row_scales ? row_scales + first : NULL;
        attention.out = got + (size_t)first * r->s->n_head * r->s->v_dim;
        attention.shared_pages = shared_pages;
        attention.n_multiprocessors = multiprocessors;
        attention.workspace = multiprocessors > 0 ? workspace : NULL;
        (void)moe_cuda_attend(NULL, &attention);
    }
    assert_int_equal(test_bits_of(got[n]), 0xffffffffu);
    free(workspace);
    return got;
}

static void attend(const rows_case *r, const moe_cuda_attention *all, uint32_t multiprocessors,
                   bool shared_pages, uint32_t piece, const float *expected)
{
    float *got = results_of(r, all, multiprocessors, shared_pages, piece);
    test_assert_same("attention by matrix", multiprocessors > 0 ? "by parts" : "at once", expected,
                     got, r->n_rows * r->s->n_head * r->s->v_dim);
    free(got);
}

/* On a GPU the order within a matrix instruction is the hardware's own. There the first result is
 * the reference of all others, if it is near the stated order's. */
static void take_own_order(const rows_case *r, const moe_cuda_attention *all, bool near,
                           float *expected)
{
    const uint32_t n = r->n_rows * r->s->n_head * r->s->v_dim;
    float *got = results_of(r, all, 0, true, r->n_rows);
    for (uint32_t i = 0; i < n && near; i++)
        test_assert_near("attention by matrix, in the GPU's order", (double)expected[i], got[i],
                         0.0, 4.0 * NEAR);
    memcpy(expected, got, n * sizeof(*got));
    free(got);
}

static void attend_every_way(const rows_case *r, uint64_t *seed, test_kind kind)
{
    size_t n_q = (size_t)r->n_rows * r->s->n_head;
    float *q = malloc(n_q * r->s->k_dim * sizeof(float));
    float *expected = malloc(n_q * r->s->v_dim * sizeof(float));
    assert_true(q != NULL && expected != NULL);
    test_fill(seed, kind, q, (uint32_t)(n_q * r->s->k_dim));
    moe_cuda_attention all = {.layout = r->c->layout,
                              .rows = r->rows,
                              .q = q,
                              .n_head = r->s->n_head,
                              .scale = 0.088f,
                              .window = r->m->window,
                              .chunk = r->m->chunk,
                              .sinks = r->m->sinks ? sinks : NULL,
                              .by_matrix = true};
    expect_rows(r, q, kind == TEST_PLAIN, expected, &all);
    if (OWN_ORDER)
        take_own_order(r, &all, kind == TEST_PLAIN, expected);
    attend(r, &all, 0, true, r->n_rows, expected);
    attend(r, &all, 132, true, r->n_rows, expected);
    attend(r, &all, 0, true, r->n_rows / 3 + 1, expected);
    all.first_visible = 0; /* bounds do */
    all.n_visible += 300;
    attend(r, &all, 132, false, r->n_rows, expected);
    free(expected);
    free(q);
}

static const mask everything;
static const shape shapes[] = {
    {8, 1, 128, 128, false}, {2, 2, 64, 64, false}, {6, 1, 64, 64, false}, {20, 1, 64, 64, false}};
#define N_SHAPES (sizeof(shapes) / sizeof(shapes[0]))

static void rows_that_decode(void **state)
{
    (void)state;
    static const uint32_t contexts[] = {1, 64, 65, 255, 300};
    uint64_t seed = 0x243f6a8885a308d3u;
    for (uint32_t i = 0; i < N_SHAPES; i++) {
        cache c;
        moe_cuda_kv_row rows[5];
        if (test_leaves_out(i, 2))
            continue;
        cache_open(&c, MOE_KV_F16, &shapes[i], 5);
        for (uint32_t r = 0; r < 5; r++) {
            fill_line(&c, &c.lines[r], contexts[r], &seed, TEST_PLAIN);
            rows[r] = (moe_cuda_kv_row){.pages = c.lines[r].pages, .position = contexts[r] - 1};
        }
        rows_case r = {&c, &shapes[i], &everything, rows, 5};
        attend_every_way(&r, &seed, i == 1 ? TEST_FINITE : TEST_PLAIN);
        cache_close(&c);
    }
}

/* Tiles of 128 queries, across the ends of pages and stretches. */
static void rows_of_a_prompt(void **state)
{
    (void)state;
    static const uint32_t firsts[] = {0, 250, 520, 61};
    static const uint32_t counts[] = {17, 65, 12, 5};
    uint64_t seed = 0x13198a2e03707344u;
    for (uint32_t i = 0; i < N_SHAPES; i++) {
        cache c;
        moe_cuda_kv_row rows[MAX_ROWS];
        if (test_leaves_out(i, 2))
            continue;
        cache_open(&c, MOE_KV_F16, &shapes[i], 1);
        fill_line(&c, c.lines, firsts[i] + counts[i], &seed, TEST_PLAIN);
        for (uint32_t r = 0; r < counts[i]; r++)
            rows[r] = (moe_cuda_kv_row){.pages = c.lines->pages, .position = firsts[i] + r};
        rows_case r = {&c, &shapes[i], &everything, rows, counts[i]};
        attend_every_way(&r, &seed, TEST_PLAIN);
        cache_close(&c);
    }
}

/* Nodes of a tree, with pages that all of them share before it; and rows of two timelines. */
static void rows_apart(void **state)
{
    (void)state;
    static tree nodes;
    uint64_t seed = 0xa4093822299f31d0u;
    cache c;
    moe_cuda_kv_row rows[MAX_ROWS];
    cache_open(&c, MOE_KV_F16, &shapes[2], 2);
    fill_line(&c, &c.lines[0], 270, &seed, TEST_PLAIN);
    fill_line(&c, &c.lines[1], 270, &seed, TEST_PLAIN);
    grow_tree(&nodes, &c.lines[0], 250, 13, &seed, rows);
    for (uint32_t i = 13; i < 16; i++)
        rows[i] = (moe_cuda_kv_row){.pages = c.lines[i % 2].pages, .position = 40 * i - 380};
    rows_case grown = {&c, &shapes[2], &everything, rows, 13};
    rows_case mixed = {&c, &shapes[2], &everything, rows, 16};
    attend_every_way(&grown, &seed, TEST_PLAIN);
    attend_every_way(&mixed, &seed, TEST_PLAIN);
    cache_close(&c);
}

/* Windows, chunks, sinks and rows' scales, over pages that are not there where no row looks. */
static void masked_rows(void **state)
{
    (void)state;
    static const mask masks[] = {{.window = 5},
                                 {.window = 130, .sinks = true},
                                 {.sinks = true},
                                 {.chunk = 48},
                                 {.window = 100, .chunk = 256, .row_scales = true}};
    uint64_t seed = 0x082efa98ec4e6c89u;
    test_fill(&seed, TEST_PLAIN, sinks, 64);
    for (uint32_t i = 0; i < MAX_ROWS; i++)
        row_scales[i] = 1.0f + 0.5f * test_unit(&seed);
    for (uint32_t i = 0; i < 10; i++) {
        const mask *m = &masks[i / 2];
        const bool prompt = i % 2 == 0;
        const uint32_t n_rows = prompt ? 34 : 4, base = 240 + 30 * i;
        moe_attention seen = {.window = m->window, .chunk = m->chunk};
        cache c;
        moe_cuda_kv_row rows[MAX_ROWS];
        void *pages[MAX_PAGES];
        uint32_t least = UINT32_MAX;
        if (test_leaves_out(i, 3))
            continue;
        cache_open(&c, MOE_KV_F16, &shapes[1 + i % 2], 1);
        fill_line(&c, c.lines, base + 300, &seed, TEST_PLAIN);
        memcpy(pages, c.lines->pages, sizeof pages);
        for (uint32_t r = 0; r < n_rows; r++) {
            rows[r] =
                (moe_cuda_kv_row){.pages = pages, .position = base + (prompt ? r : 97 * r % 300)};
            uint32_t from = moe_attention_first(&seen, rows[r].position);
            least = from < least ? from : least;
        }
        for (uint32_t p = 0; p < least / MOE_KV_PAGE; p++)
            pages[p] = NULL;
        for (uint32_t p = (rows[n_rows - 1].position + 64) / 64; prompt && p < MAX_PAGES; p++)
            pages[p] = NULL;
        rows_case r = {&c, &shapes[1 + i % 2], m, rows, n_rows};
        attend_every_way(&r, &seed, TEST_PLAIN);
        cache_close(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_that_decode),
        cmocka_unit_test(rows_of_a_prompt),
        cmocka_unit_test(rows_apart),
        cmocka_unit_test(masked_rows),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    print_message("greatest error: %.2g of the greatest value\n", greatest_error);
    return failed;
}
