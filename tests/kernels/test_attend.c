/* SPDX-License-Identifier: MIT */
/* Attention over pages: every instruction set against the reference bit by bit, pages and merges
 * against plain softmax attention in double. With --bench [SHAPE]: decode and prefill shapes. */
#include "vector_test_util.h"

#define MAX_Q         64
#define MAX_DIM       576
#define N_SOURCES     3
#define MAX_ROW_BYTES (MAX_DIM * 4 + 4) /* padded rows too */

typedef struct page {
    moe_kv_type type;
    uint32_t k_dim, v_dim, n_q;
    bool aliased;
    size_t k_row_bytes, v_row_bytes;
    uint8_t k[MOE_KV_PAGE * MAX_ROW_BYTES];
    uint8_t v[MOE_KV_PAGE * MAX_ROW_BYTES];
    float cap;
} page;

typedef struct result {
    float max[MAX_Q];
    float sum[MAX_Q];
    float out[MAX_Q * MAX_DIM];
} result;

static void fill_rows(const moe_vector_kernels *k, uint64_t *seed, test_kind kind, moe_kv_type type,
                      uint8_t *rows, size_t row_bytes, uint32_t dim)
{
    float x[MAX_DIM];
    for (uint32_t j = 0; j < MOE_KV_PAGE; j++) {
        test_fill(seed, kind, x, dim);
        k->kv_store(type, x, rows + j * row_bytes, dim);
    }
}

/* A page of the shape of another. */
static void fill_like(const moe_vector_kernels *k, uint64_t *seed, const page *shape, page *p)
{
    p->k_row_bytes = shape->k_row_bytes;
    p->v_row_bytes = shape->v_row_bytes;
    fill_rows(k, seed, TEST_PLAIN, p->type, p->k, p->k_row_bytes, p->k_dim);
    fill_rows(k, seed, TEST_PLAIN, p->type, p->v, p->v_row_bytes, p->v_dim);
}

static void fill_page(const moe_vector_kernels *k, uint64_t *seed, test_kind kind, page *p)
{
    p->k_row_bytes = moe_kv_row_bytes(p->type, p->k_dim) + 2 * test_below(seed, 3);
    p->v_row_bytes = p->aliased ? p->k_row_bytes : moe_kv_row_bytes(p->type, p->v_dim);
    fill_rows(k, seed, kind, p->type, p->k, p->k_row_bytes, p->k_dim);
    fill_rows(k, seed, kind, p->type, p->v, p->v_row_bytes, p->v_dim);
}

/* Where the positions of a page are. */
typedef struct row_list {
    const void *k[MOE_KV_PAGE];
    const void *v[MOE_KV_PAGE];
} row_list;

/* With rows, p has the shape only. */
static void attend(const moe_vector_kernels *k, const page *p, const float *q, uint32_t n_valid,
                   const row_list *rows, float scale, result *out)
{
    k->attend_page(&(moe_attend_args){.type = p->type,
                                      .k = rows != NULL ? NULL : p->k,
                                      .v = rows != NULL ? NULL
                                           : p->aliased ? p->k
                                                        : p->v,
                                      .k_rows = rows != NULL ? rows->k : NULL,
                                      .v_rows = rows != NULL ? rows->v : NULL,
                                      .k_row_bytes = p->k_row_bytes,
                                      .v_row_bytes = p->v_row_bytes,
                                      .k_dim = p->k_dim,
                                      .v_dim = p->v_dim,
                                      .n_valid = n_valid,
                                      .n_q = p->n_q,
                                      .q = q,
                                      .scale = scale,
                                      .cap = p->cap,
                                      .max = out->max,
                                      .sum = out->sum,
                                      .out = out->out});
}

/* Any position of any of n pages in each place; a key and its value are of one. */
static void gather(uint64_t *seed, const page *pages, uint32_t n, uint32_t n_valid, row_list *rows)
{
    memset(rows, 0, sizeof(*rows)); /* behind n_valid nothing may be followed */
    for (uint32_t j = 0; j < n_valid; j++) {
        const page *p = &pages[test_below(seed, n)];
        uint32_t slot = test_below(seed, MOE_KV_PAGE);
        rows->k[j] = p->k + slot * p->k_row_bytes;
        rows->v[j] = p->aliased ? rows->k[j] : p->v + slot * p->v_row_bytes;
    }
}

/* The shapes of real models, and odd ones. */
static void pick_shape(uint64_t *seed, uint32_t round, page *p)
{
    static const uint32_t dims[][2] = {{64, 64}, {128, 128}, {576, 512}, {192, 128}, {96, 32}};
    static const moe_kv_type types[] = {MOE_KV_F16, MOE_KV_F32, MOE_KV_Q8_0, MOE_KV_Q4_0,
                                        MOE_KV_F8};
    p->type = types[round % 5];
    p->cap = round % 11 == 3 ? 2.0f : 0.0f;
    p->aliased = false;
    p->n_q = 1 + test_below(seed, round % 3 == 0 ? MAX_Q : 9);
    uint32_t shape = round / 5 % 8;
    if (shape < 5) {
        p->k_dim = dims[shape][0];
        p->v_dim = dims[shape][1];
        p->aliased = shape == 2;
        p->n_q = shape == 2 ? 1 + test_below(seed, MAX_Q) : p->n_q;
    } else {
        p->k_dim = 1 + test_below(seed, 200);
        p->v_dim = 1 + test_below(seed, 200);
        if (p->type == MOE_KV_Q8_0 || p->type == MOE_KV_Q4_0) {
            p->k_dim = (p->k_dim + 31) / 32 * 32;
            p->v_dim = (p->v_dim + 31) / 32 * 32;
        }
    }
}

static void every_level_gives_the_reference_bits(void **state)
{
    (void)state;
    static page p;
    static result expected, got;
    static float q[MAX_Q * MAX_DIM];
    uint64_t seed = 0xd1b54a32d192ed03u;
    test_level levels[3];
    uint32_t n_levels = test_levels(levels);
    moe_vector_kernels reference;
    moe_vector_kernels_init(&reference, 0);
    for (uint32_t round = 0; round < 800; round++) {
        uint32_t which = round / 7 % 5; /* with every type */
        test_kind kind = which == 0 ? TEST_WILD : which == 1 ? TEST_FINITE : TEST_PLAIN;
        row_list rows;
        pick_shape(&seed, round, &p);
        fill_page(&reference, &seed, kind, &p);
        test_fill(&seed, kind == TEST_WILD ? TEST_FINITE : kind, q, p.n_q * p.k_dim);
        bool whole = round % 4 == 0 || (p.n_q >= 32 && round % 2 == 0); /* has a way of its own */
        uint32_t n_valid = whole ? MOE_KV_PAGE : 1 + test_below(&seed, MOE_KV_PAGE);
        gather(&seed, &p, 1, n_valid, &rows);
        const row_list *order = round / 3 % 3 == 2 ? &rows : NULL; /* of every type */
        memset(&expected, 0x55, sizeof(expected));
        attend(&reference, &p, q, n_valid, order, 0.0883883f, &expected);
        for (uint32_t l = 1; l < n_levels; l++) {
            moe_vector_kernels k;
            moe_vector_kernels_init(&k, levels[l].features);
            memset(&got, 0x55, sizeof(got));
            attend(&k, &p, q, n_valid, order, 0.0883883f, &got);
            test_assert_same("max", levels[l].name, expected.max, got.max, MAX_Q);
            test_assert_same("sum", levels[l].name, expected.sum, got.sum, MAX_Q);
            /* To the end of the area: nothing may be written behind the result. */
            test_assert_same("out", levels[l].name, expected.out, got.out, MAX_Q * MAX_DIM);
        }
    }
}

/* NaNs of either sign anywhere in keys or values of F8, and queries that a power of two makes
 * infinite: the reference's bits, from rows whose length is no multiple of a register, too. */
static void f8_is_exact_at_its_edges(void **state)
{
    (void)state;
    static page p;
    static result expected, got;
    static float q[MAX_Q * MAX_DIM];
    uint64_t seed = 31;
    test_level levels[3];
    uint32_t n_levels = test_levels(levels);
    moe_vector_kernels reference;
    moe_vector_kernels_init(&reference, 0);
    for (uint32_t round = 0; round < 120; round++) {
        p = (page){.type = MOE_KV_F8, .n_q = 1 + test_below(&seed, 5)};
        p.k_dim = round % 2 == 0 ? 128 : 1 + test_below(&seed, 200);
        p.v_dim = round % 2 == 0 ? 128 : 1 + test_below(&seed, 200);
        fill_page(&reference, &seed, TEST_PLAIN, &p);
        test_fill(&seed, TEST_PLAIN, q, p.n_q * p.k_dim);
        uint32_t n_valid = 1 + test_below(&seed, MOE_KV_PAGE);
        uint32_t at = test_below(&seed, n_valid);
        uint8_t nan = round / 3 % 2 == 0 ? 0x7f : 0xff;
        if (round % 3 == 0)
            p.k[at * p.k_row_bytes + test_below(&seed, p.k_dim)] = nan;
        else if (round % 3 == 1)
            p.v[at * p.v_row_bytes + test_below(&seed, p.v_dim)] = nan;
        else
            q[test_below(&seed, p.n_q * p.k_dim)] = round % 4 < 2 ? 1e37f : -0x1p120f;
        attend(&reference, &p, q, n_valid, NULL, 0x1p-120f, &expected);
        for (uint32_t l = 1; l < n_levels; l++) {
            moe_vector_kernels k;
            moe_vector_kernels_init(&k, levels[l].features);
            attend(&k, &p, q, n_valid, NULL, 0x1p-120f, &got);
            test_assert_same("max", levels[l].name, expected.max, got.max, p.n_q);
            test_assert_same("sum", levels[l].name, expected.sum, got.sum, p.n_q);
            test_assert_same("out", levels[l].name, expected.out, got.out, p.n_q * p.v_dim);
        }
    }
}

/* Positions gathered from several pages, the values of an aliased page from its keys: the same bits
 * as the same vectors in order, on every level. */
static void gathered_rows_equal_a_page_in_order(void **state)
{
    (void)state;
    static page pages[N_SOURCES], ordered;
    static result gathered, in_order;
    static float q[MAX_Q * MAX_DIM];
    uint64_t seed = 17;
    test_level levels[3];
    uint32_t n_levels = test_levels(levels);
    for (uint32_t round = 0; round < 240; round++) {
        moe_vector_kernels k;
        row_list rows;
        moe_vector_kernels_init(&k, 0);
        pick_shape(&seed, round, &pages[0]);
        for (uint32_t i = 1; i < N_SOURCES; i++)
            pages[i] = pages[0];
        fill_page(&k, &seed, TEST_PLAIN, &pages[0]);
        for (uint32_t i = 1; i < N_SOURCES; i++)
            fill_like(&k, &seed, &pages[0], &pages[i]);
        test_fill(&seed, TEST_PLAIN, q, pages[0].n_q * pages[0].k_dim);
        uint32_t n_valid = 1 + test_below(&seed, MOE_KV_PAGE);
        gather(&seed, pages, N_SOURCES, n_valid, &rows);
        ordered = pages[0];
        for (uint32_t j = 0; j < n_valid; j++) {
            memcpy(ordered.k + j * ordered.k_row_bytes, rows.k[j], ordered.k_row_bytes);
            memcpy(ordered.v + j * ordered.v_row_bytes, rows.v[j], ordered.v_row_bytes);
        }
        for (uint32_t l = 0; l < n_levels; l++) {
            moe_vector_kernels_init(&k, levels[l].features);
            memset(&gathered, 0x55, sizeof(gathered));
            memset(&in_order, 0x55, sizeof(in_order));
            attend(&k, &ordered, q, n_valid, &rows, 0.125f, &gathered);
            attend(&k, &ordered, q, n_valid, NULL, 0.125f, &in_order);
            test_assert_same("max", levels[l].name, in_order.max, gathered.max, MAX_Q);
            test_assert_same("sum", levels[l].name, in_order.sum, gathered.sum, MAX_Q);
            test_assert_same("out", levels[l].name, in_order.out, gathered.out, MAX_Q * MAX_DIM);
        }
    }
}

/* A query sees the same whether alone or with others of its group. */
static void queries_do_not_depend_on_their_neighbours(void **state)
{
    (void)state;
    static page p;
    static result together, alone;
    static float q[MAX_Q * MAX_DIM];
    uint64_t seed = 23;
    test_level levels[3];
    uint32_t n_levels = test_levels(levels);
    for (uint32_t l = 0; l < n_levels; l++) {
        moe_vector_kernels k;
        moe_vector_kernels_init(&k, levels[l].features);
        p = (page){.type = MOE_KV_F16, .k_dim = 128, .v_dim = 128, .n_q = 23};
        fill_page(&k, &seed, TEST_PLAIN, &p);
        test_fill(&seed, TEST_PLAIN, q, p.n_q * p.k_dim);
        attend(&k, &p, q, 61, NULL, 0.09f, &together);
        p.n_q = 1;
        for (uint32_t h = 0; h < 23; h++) {
            attend(&k, &p, q + h * 128, 61, NULL, 0.09f, &alone);
            assert_memory_equal(&alone.max[0], &together.max[h], sizeof(float));
            assert_memory_equal(&alone.sum[0], &together.sum[h], sizeof(float));
            assert_memory_equal(alone.out, together.out + h * 128, 128 * sizeof(float));
        }
    }
}

#define N_PAGES 5

/* Softmax attention of one query over all pages in double, the cache as it loads. */
static void attend_in_double(const moe_vector_kernels *k, const page *pages, uint32_t n,
                             const float *q, double scale, double *out)
{
    static double scores[N_PAGES * MOE_KV_PAGE];
    float row[MAX_DIM];
    double max = -INFINITY, sum = 0;
    for (uint32_t j = 0; j < n; j++) {
        const page *p = &pages[j / MOE_KV_PAGE];
        k->kv_load(p->type, p->k + j % MOE_KV_PAGE * p->k_row_bytes, row, p->k_dim);
        scores[j] = 0;
        for (uint32_t i = 0; i < p->k_dim; i++)
            scores[j] += scale * q[i] * row[i];
        if (p->cap != 0)
            scores[j] = p->cap * tanh(scores[j] / p->cap);
        max = fmax(max, scores[j]);
    }
    for (uint32_t i = 0; i < pages->v_dim; i++)
        out[i] = 0;
    for (uint32_t j = 0; j < n; j++) {
        const page *p = &pages[j / MOE_KV_PAGE];
        const uint8_t *v = p->aliased ? p->k : p->v;
        k->kv_load(p->type, v + j % MOE_KV_PAGE * p->v_row_bytes, row, p->v_dim);
        double weight = exp(scores[j] - max);
        sum += weight;
        for (uint32_t i = 0; i < p->v_dim; i++)
            out[i] += weight * row[i];
    }
    for (uint32_t i = 0; i < pages->v_dim; i++)
        out[i] /= sum;
}

static void pages_merge_into_softmax_attention(void **state)
{
    (void)state;
    static page pages[N_PAGES];
    static result part;
    static float q[MAX_DIM];
    double exact[MAX_DIM];
    uint64_t seed = 99;
    test_level levels[3];
    uint32_t n_levels = test_levels(levels);
    double worst = 0;
    for (uint32_t round = 0; round < 72; round++) {
        moe_vector_kernels k;
        moe_vector_kernels_init(&k, levels[round % n_levels].features);
        pick_shape(&seed, round / 3, &pages[0]);
        pages[0].n_q = 1;
        for (uint32_t i = 1; i < N_PAGES; i++)
            pages[i] = pages[0];
        for (uint32_t i = 0; i < N_PAGES; i++)
            fill_page(&k, &seed, TEST_PLAIN, &pages[i]);
        test_fill(&seed, TEST_PLAIN, q, pages[0].k_dim);
        uint32_t n = 1 + test_below(&seed, N_PAGES * MOE_KV_PAGE);
        float scale = 0.5f / sqrtf((float)pages[0].k_dim);
        float max = -INFINITY, sum = 0, out[MAX_DIM] = {0};
        for (uint32_t first = 0; first < n; first += MOE_KV_PAGE) {
            uint32_t n_valid = n - first < MOE_KV_PAGE ? n - first : MOE_KV_PAGE;
            attend(&k, &pages[first / MOE_KV_PAGE], q, n_valid, NULL, scale, &part);
            k.attend_merge(&max, &sum, out, part.max[0], part.sum[0], part.out, pages[0].v_dim);
        }
        attend_in_double(&k, pages, n, q, scale, exact);
        double size = 0, error = 0;
        for (uint32_t i = 0; i < pages[0].v_dim; i++) {
            size = fmax(size, fabs(exact[i]));
            error = fmax(error, fabs(exact[i] - (double)out[i] / sum));
        }
        worst = fmax(worst, error / size);
        assert_true(error <= 1e-5 * size);
    }
    print_message("attention: greatest error %.2g of the largest component\n", worst);
}

/* One key dominates: the result is its value, to the bit. */
static void one_dominant_position_is_copied(void **state)
{
    (void)state;
    test_level levels[3];
    uint32_t n_levels = test_levels(levels);
    static page p;
    static result r;
    for (uint32_t l = 0; l < n_levels; l++) {
        moe_vector_kernels k;
        moe_vector_kernels_init(&k, levels[l].features);
        p = (page){.type = MOE_KV_F32, .k_dim = 64, .v_dim = 64, .n_q = 1};
        uint64_t seed = 4;
        fill_page(&k, &seed, TEST_PLAIN, &p);
        float q[64], row[64];
        for (uint32_t i = 0; i < 64; i++) {
            q[i] = 1.0f;
            row[i] = 10.0f; /* a score of 640, the others at most 256 */
        }
        k.kv_store(p.type, row, p.k + 33 * p.k_row_bytes, 64);
        attend(&k, &p, q, MOE_KV_PAGE, NULL, 1.0f, &r);
        assert_true(r.max[0] == 640.0f && r.sum[0] == 1.0f);
        assert_memory_equal(r.out, p.v + 33 * p.v_row_bytes, 64 * sizeof(float));
    }
}

/* Scores of either zero: the maximum is +0 whatever the order of comparisons. */
static void a_zero_maximum_is_positive(void **state)
{
    (void)state;
    static page p;
    static result r;
    test_level levels[3];
    uint32_t n_levels = test_levels(levels);
    for (uint32_t l = 0; l < n_levels; l++) {
        moe_vector_kernels k;
        moe_vector_kernels_init(&k, levels[l].features);
        for (uint32_t dim = 16; dim <= 64; dim += 3) {
            float q[64], row[64];
            p = (page){.type = MOE_KV_F32, .k_dim = dim, .v_dim = dim, .n_q = 1};
            p.k_row_bytes = p.v_row_bytes = dim * sizeof(float);
            for (uint32_t j = 0; j < MOE_KV_PAGE; j++) {
                for (uint32_t i = 0; i < dim; i++) {
                    q[i] = 1e-30f;
                    row[i] = j % 2 == 0 && dim % 2 == 0 ? 1e-30f : -1e-30f;
                }
                k.kv_store(p.type, row, p.k + j * p.k_row_bytes, dim);
                k.kv_store(p.type, row, p.v + j * p.v_row_bytes, dim);
            }
            attend(&k, &p, q, MOE_KV_PAGE, NULL, 1.0f, &r);
            assert_int_equal(test_bits_of(r.max[0]), 0);
            assert_true(r.sum[0] == 64.0f);
        }
    }
}

typedef struct shape {
    const char *name;
    uint32_t k_dim, v_dim, n_q;
    bool aliased;
} shape;

/* Pages packed into an arena that no cache holds, as one decoding step of a long context meets
 * them: copies of one filled page. n_pages is what fits. */
#define ARENA_BYTES ((size_t)192 << 20)

static size_t fill_arena(uint8_t *arena, const page *p, uint32_t *n_pages)
{
    size_t k_bytes = MOE_KV_PAGE * p->k_row_bytes;
    size_t v_bytes = p->aliased ? 0 : MOE_KV_PAGE * p->v_row_bytes;
    *n_pages = (uint32_t)(ARENA_BYTES / (k_bytes + v_bytes));
    for (uint32_t i = 0; i < *n_pages; i++) {
        uint8_t *at = arena + i * (k_bytes + v_bytes);
        memcpy(at, p->k, k_bytes);
        memcpy(at + k_bytes, p->v, v_bytes);
    }
    return k_bytes + v_bytes;
}

/* ns per page, walking through the first n_pages of the arena. */
static double bench_ns(const moe_vector_kernels *k, const page *p, const uint8_t *arena,
                       size_t page_bytes, uint32_t n_pages, const float *q)
{
    static result r;
    uint64_t best = UINT64_MAX;
    for (uint32_t repeat = 0; repeat < 7; repeat++) {
        uint32_t calls = n_pages > 16 ? n_pages : 16;
        uint64_t start = test_cpu_ns();
        for (uint32_t i = 0; i < calls; i++) {
            const uint8_t *at = arena + i % n_pages * page_bytes;
            k->attend_page(&(moe_attend_args){
                .type = p->type,
                .k = at,
                .v = p->aliased ? at : at + MOE_KV_PAGE * p->k_row_bytes,
                .next_k = arena + (i + 1) % n_pages * page_bytes,
                .k_row_bytes = p->k_row_bytes,
                .v_row_bytes = p->v_row_bytes,
                .k_dim = p->k_dim,
                .v_dim = p->v_dim,
                .n_valid = MOE_KV_PAGE,
                .n_q = p->n_q,
                .q = q,
                .scale = 0.1f,
                .max = r.max,
                .sum = r.sum,
                .out = r.out,
            });
        }
        uint64_t took = (test_cpu_ns() - start) / calls;
        best = took < best ? took : best;
    }
    return (double)best;
}

static void bench_shape(const shape *s, moe_kv_type type, const char *type_name, uint8_t *arena,
                        const float *q)
{
    static page p;
    uint64_t seed = 1;
    uint32_t n_pages;
    test_level levels[3];
    uint32_t n_levels = test_levels(levels);
    moe_vector_kernels k;
    moe_vector_kernels_init(&k, 0);
    p = (page){.type = type, .k_dim = s->k_dim, .v_dim = s->v_dim, .n_q = s->n_q};
    p.aliased = s->aliased;
    p.k_row_bytes = moe_kv_row_bytes(type, p.k_dim);
    p.v_row_bytes = p.aliased ? p.k_row_bytes : moe_kv_row_bytes(type, p.v_dim);
    fill_rows(&k, &seed, TEST_PLAIN, type, p.k, p.k_row_bytes, p.k_dim);
    fill_rows(&k, &seed, TEST_PLAIN, type, p.v, p.v_row_bytes, p.v_dim);
    size_t bytes = fill_arena(arena, &p, &n_pages);
    printf("%-16s %-4s", s->name, type_name);
    for (uint32_t l = 0; l < n_levels; l++) {
        moe_vector_kernels_init(&k, levels[l].features);
        double near = bench_ns(&k, &p, arena, bytes, 1, q);
        printf("  %s near %.0f ns (%.1f GB/s)", levels[l].name, near, (double)bytes / near);
        if (l > 0) {
            double far = bench_ns(&k, &p, arena, bytes, n_pages, q);
            printf(" far %.0f (%.1f)", far, (double)bytes / far);
        }
    }
    printf("\n");
}

/* only: the first characters of the shapes to measure. */
static int run_benches(const char *only)
{
    static const shape shapes[] = {
        {"1 x 64/64", 64, 64, 1, false},     {"1 x 128/128", 128, 128, 1, false},
        {"4 x 128/128", 128, 128, 4, false}, {"8 x 64/64", 64, 64, 8, false},
        {"8 x 128/128", 128, 128, 8, false}, {"64 x 128/128", 128, 128, 64, false},
        {"64 x 64/64", 64, 64, 64, false},   {"MLA 16 x 576/512", 576, 512, 16, true},
    };
    static const moe_kv_type types[] = {MOE_KV_F16, MOE_KV_F32, MOE_KV_Q8_0, MOE_KV_Q4_0,
                                        MOE_KV_F8};
    static const char *const type_names[] = {"F16", "F32", "Q8_0", "Q4_0", "F8"};
    static float q[MAX_Q * MAX_DIM];
    uint64_t seed = 1;
    uint8_t *arena = malloc(ARENA_BYTES);
    if (arena == NULL)
        return 1;
    test_fill(&seed, TEST_PLAIN, q, MAX_Q * MAX_DIM);
    printf("CPU time per page of %d positions (cache bytes per second): near = one page over and "
           "over, far = %zu MiB of pages\n",
           MOE_KV_PAGE, ARENA_BYTES >> 20);
    for (uint32_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++)
        for (uint32_t t = 0; t < 5 && strncmp(shapes[s].name, only, strlen(only)) == 0; t++)
            bench_shape(&shapes[s], types[t], type_names[t], arena, q);
    free(arena);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--bench") == 0)
        return run_benches(argc > 2 ? argv[2] : "");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_level_gives_the_reference_bits),
        cmocka_unit_test(f8_is_exact_at_its_edges),
        cmocka_unit_test(gathered_rows_equal_a_page_in_order),
        cmocka_unit_test(queries_do_not_depend_on_their_neighbours),
        cmocka_unit_test(pages_merge_into_softmax_attention),
        cmocka_unit_test(one_dominant_position_is_copied),
        cmocka_unit_test(a_zero_maximum_is_positive),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
