/* SPDX-License-Identifier: MIT */
/* What every device must do with the cache of keys and values: rows of a tree see what the same
 * rows of a timeline see, bit by bit, and kv_move() makes a timeline of a path; so it is if the
 * layers have pages of their own; keys of pools of positions are the same bytes. Results are held
 * against the first device, the CPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cpu/kernels/vector_ops.h"
#include "device_fixture.h"

#define N_LAYERS    2u
#define N_PAGES     5u
#define MAX_GROUPS  2u
#define N_POSITIONS 140u /* of the timeline: two whole pages and a part */
#define BASE        60u  /* where the tree begins */
#define K_DIM       64u
#define V_DIM       32u
#define MAX_KV_HEAD 2u
#define MAX_HEAD    6u
#define N_QUERIES   4u

/* Grouped queries in layer 0, values within keys (MLA) in layer 1. */
static const uint32_t head_counts[N_LAYERS] = {6, 5};

typedef struct cache {
    moe_device *device;
    moe_kv_layout layers[N_LAYERS];
    size_t page_bytes;
    uint32_t n_groups;                 /* 1, or each layer is a group */
    void *plain[N_PAGES * MAX_GROUPS]; /* the timeline in its places */
    void *tree[N_PAGES * MAX_GROUPS];  /* the same, from BASE on where path[] says */
    uint32_t path[N_POSITIONS - BASE];
    uint32_t from_start[N_POSITIONS]; /* as a path from position 0 */
} cache;

static void lay_out(cache *c, moe_kv_type type)
{
    size_t offset = 0;
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        moe_kv_layout *layout = &c->layers[l];
        offset = c->n_groups > 1 ? 0 : offset;
        *layout = (moe_kv_layout){.type = (int)type,
                                  .group = c->n_groups > 1 ? l : 0,
                                  .n_other_groups = c->n_groups - 1,
                                  .n_head_kv = l == 0 ? MAX_KV_HEAD : 1,
                                  .k_dim = K_DIM,
                                  .v_dim = V_DIM,
                                  .k_row_bytes = moe_kv_row_bytes(type, K_DIM),
                                  .v_row_bytes = moe_kv_row_bytes(type, V_DIM),
                                  .k_offset = offset,
                                  .v_in_k = l == 1};
        size_t positions = (size_t)layout->n_head_kv * MOE_KV_PAGE;
        offset += (positions * layout->k_row_bytes + 63) / 64 * 64;
        layout->v_offset = offset;
        if (layout->v_in_k) {
            layout->v_offset = layout->k_offset;
            layout->v_row_bytes = layout->k_row_bytes;
        } else {
            offset += (positions * layout->v_row_bytes + 63) / 64 * 64;
        }
        c->page_bytes = offset > c->page_bytes ? offset : c->page_bytes;
    }
}

static void open_cache(cache *c, moe_device *device, moe_kv_type type, uint32_t n_groups)
{
    memset(c, 0, sizeof *c);
    c->device = device;
    c->n_groups = n_groups;
    lay_out(c, type);
    uint8_t *bytes = malloc(c->page_bytes);
    assert_non_null(bytes);
    memset(bytes, 0xff, c->page_bytes); /* NaNs: what is not stored must not be seen */
    for (uint32_t p = 0; p < N_PAGES * n_groups; p++) {
        c->plain[p] = device_upload(device, bytes, c->page_bytes);
        c->tree[p] = device_upload(device, bytes, c->page_bytes);
    }
    free(bytes);
    for (uint32_t i = 0, at = BASE; i < N_POSITIONS - BASE; i++) {
        at += (i * 7 + i / 3) % 4 + (i > 0); /* gaps of 0..3; the first may stay in its place */
        c->path[i] = at;
        assert_true(at < N_PAGES * MOE_KV_PAGE);
    }
    for (uint32_t i = 0; i < N_POSITIONS; i++) {
        c->from_start[i] = i < BASE ? i : c->path[i - BASE];
    }
}

static void close_cache(cache *c)
{
    for (uint32_t p = 0; p < N_PAGES * c->n_groups; p++) {
        c->device->ops->free(c->device, c->plain[p], c->page_bytes);
        c->device->ops->free(c->device, c->tree[p], c->page_bytes);
    }
}

/* A row at a position: in its place, or on the path. */
static moe_kv_row row_at(cache *c, bool tree, uint32_t position)
{
    moe_kv_row row = moe_kv_row_at(tree ? c->tree : c->plain, position);
    if (tree && position >= BASE) {
        row.stored = c->path[position - BASE];
        row.path = c->path;
        row.path_first = BASE;
    }
    return row;
}

static void store_all(cache *c, bool tree)
{
    static float k[N_POSITIONS * MAX_KV_HEAD * K_DIM], v[N_POSITIONS * MAX_KV_HEAD * V_DIM];
    moe_kv_row rows[N_POSITIONS];
    for (uint32_t i = 0; i < N_POSITIONS; i++) {
        rows[i] = row_at(c, tree, i);
    }
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        fill_values(k, sizeof k / sizeof k[0], 3 + l);
        fill_values(v, sizeof v / sizeof v[0], 8 + l);
        float *device_k = device_upload(c->device, k, sizeof k);
        float *device_v = device_upload(c->device, v, sizeof v);
        assert_int_equal(c->device->ops->kv_store(c->device, &c->layers[l], rows, N_POSITIONS,
                                                  device_k, (size_t)MAX_KV_HEAD * K_DIM, device_v,
                                                  (size_t)MAX_KV_HEAD * V_DIM, NULL),
                         MOE_OK);
        assert_int_equal(c->device->ops->sync(c->device, NULL), MOE_OK);
        c->device->ops->free(c->device, device_k, sizeof k);
        c->device->ops->free(c->device, device_v, sizeof v);
    }
}

typedef struct seen {
    float out[N_QUERIES * MAX_HEAD * V_DIM];
} seen;

static void attend(cache *c, uint32_t layer, const moe_kv_row rows[N_QUERIES], seen *result)
{
    static float q[N_QUERIES * MAX_HEAD * K_DIM];
    fill_values(q, sizeof q / sizeof q[0], 77);
    memset(result, 0, sizeof *result);
    float *device_q = device_upload(c->device, q, sizeof q);
    float *out = device_upload(c->device, result, sizeof *result);
    moe_attention attention = {.layout = c->layers[layer],
                               .rows = rows,
                               .q = device_q,
                               .n_head = head_counts[layer],
                               .scale = 0.7f,
                               .out = out};
    assert_int_equal(c->device->ops->attention(c->device, &attention, N_QUERIES, NULL), MOE_OK);
    assert_int_equal(c->device->ops->download(c->device, result, out, sizeof *result, NULL),
                     MOE_OK);
    c->device->ops->free(c->device, device_q, sizeof q);
    c->device->ops->free(c->device, out, sizeof *result);
}

/* Four rows of a pass: in the tree's first page, at a page's end, at its beginning, the last. */
static const uint32_t queries[N_QUERIES] = {BASE + 1, 127, 64, N_POSITIONS - 1};

static void check_tree_rows(cache *c, uint32_t layer, seen *plain)
{
    moe_kv_row rows[N_QUERIES];
    seen result;
    for (uint32_t i = 0; i < N_QUERIES; i++) {
        rows[i] = row_at(c, false, queries[i]);
    }
    attend(c, layer, rows, plain);
    for (uint32_t i = 0; i < sizeof plain->out / sizeof plain->out[0]; i++) {
        assert_true(plain->out[i] == plain->out[i]);
    }
    for (uint32_t i = 0; i < N_QUERIES; i++) {
        rows[i] = row_at(c, true, queries[i]);
    }
    attend(c, layer, rows, &result);
    assert_memory_equal(&result, plain, sizeof result);
    /* The path may begin anywhere, and rows of a timeline and of a tree may stand in one pass. */
    rows[0] = row_at(c, false, queries[0]);
    rows[1].path = c->from_start;
    rows[1].path_first = 0;
    rows[3].path = c->from_start + 33;
    rows[3].path_first = 33;
    attend(c, layer, rows, &result);
    assert_memory_equal(&result, plain, sizeof result);
}

/* One position's rows of a layer in a copy of the pages. */
static void expect_move(const moe_kv_layout *layout, uint8_t *const pages[N_PAGES * MAX_GROUPS],
                        uint32_t from, uint32_t to)
{
    for (uint32_t h = 0; h < layout->n_head_kv; h++) {
        size_t source = h * MOE_KV_PAGE + from % MOE_KV_PAGE;
        size_t target = h * MOE_KV_PAGE + to % MOE_KV_PAGE;
        const uint8_t *of = pages[moe_kv_entry(layout, from / MOE_KV_PAGE)];
        uint8_t *at = pages[moe_kv_entry(layout, to / MOE_KV_PAGE)];
        memmove(at + layout->k_offset + target * layout->k_row_bytes,
                of + layout->k_offset + source * layout->k_row_bytes, layout->k_row_bytes);
        memmove(at + layout->v_offset + target * layout->v_row_bytes,
                of + layout->v_offset + source * layout->v_row_bytes, layout->v_row_bytes);
    }
}

/* Every byte of every page is as if the positions had been moved one after the other. */
static void check_move(cache *c)
{
    enum { N = N_POSITIONS - BASE };
    uint32_t to[N];
    uint8_t *expected[N_PAGES * MAX_GROUPS];
    uint8_t *got = malloc(c->page_bytes);
    for (uint32_t p = 0; p < N_PAGES * c->n_groups; p++) {
        expected[p] = malloc(c->page_bytes);
        c->device->ops->download(c->device, expected[p], c->tree[p], c->page_bytes, NULL);
    }
    for (uint32_t i = 0; i < N; i++) {
        to[i] = BASE + i;
        for (uint32_t l = 0; l < N_LAYERS; l++) {
            expect_move(&c->layers[l], expected, c->path[i], to[i]);
        }
    }
    moe_kv_move move = {c->layers, N_LAYERS, c->tree, c->path, to, N};
    assert_int_equal(c->device->ops->kv_move(c->device, &move, NULL), MOE_OK);
    for (uint32_t p = 0; p < N_PAGES * c->n_groups; p++) {
        assert_int_equal(c->device->ops->download(c->device, got, c->tree[p], c->page_bytes, NULL),
                         MOE_OK);
        assert_memory_equal(got, expected[p], c->page_bytes);
        free(expected[p]);
    }
    free(got);
}

static void check_cache(moe_device *device, moe_kv_type type, uint32_t n_groups,
                        seen results[N_LAYERS])
{
    static cache c;
    open_cache(&c, device, type, n_groups);
    store_all(&c, false);
    store_all(&c, true);
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        check_tree_rows(&c, l, &results[l]);
    }
    check_move(&c);
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        moe_kv_row rows[N_QUERIES];
        seen moved;
        for (uint32_t i = 0; i < N_QUERIES; i++) {
            rows[i] = moe_kv_row_at(c.tree, queries[i]);
        }
        attend(&c, l, rows, &moved);
        assert_memory_equal(&moved, &results[l], sizeof moved);
    }
    close_cache(&c);
}

static void rows_of_trees(void **state)
{
    (void)state;
    static const moe_kv_type types[] = {MOE_KV_F16, MOE_KV_F32, MOE_KV_Q8_0};
    static seen expected[3][N_LAYERS], results[N_LAYERS];
    for (size_t i = 0; device_spec_at(i) != NULL; i++) {
        device_fixture fixture;
        open_device(&fixture, device_spec_at(i));
        moe_device_limits limits = {.linear = {1, K_DIM},
                                    .head_linear = {MAX_HEAD, K_DIM},
                                    .max_v_dim = V_DIM,
                                    .max_head_group = MAX_HEAD};
        assert_int_equal(fixture.device->ops->reserve(fixture.device, &limits, NULL), MOE_OK);
        for (int t = 0; t < 3; t++) {
            check_cache(fixture.device, types[t], 1, i == 0 ? expected[t] : results);
            if (i > 0) {
                assert_memory_equal(results, expected[t], sizeof results);
            }
            if ((fixture.device->features & MOE_DEVICE_KV_GROUPS) != 0) {
                check_cache(fixture.device, types[t], MAX_GROUPS, results);
                assert_memory_equal(results, expected[t], sizeof results);
            }
        }
        close_device(&fixture);
    }
}

/* ---- Keys of pools ---- */

#define POOL      4u
#define POOL_ROWS 5u
#define N_ROT     8u

/* The rows of a pass: in the timeline and in the tree, ending a pool or not, one over two pages. */
static const uint32_t pool_rows[POOL_ROWS] = {POOL - 1, 65, BASE + POOL - 1, 127, N_POSITIONS - 1};

/* Fills in the bytes of all pages. */
static void pool_keys(moe_device *device, moe_kv_type type, bool means, uint8_t *bytes)
{
    static cache c;
    static float weight[POOL * K_DIM], cosines[POOL_ROWS * N_ROT / 2], sines[POOL_ROWS * N_ROT / 2];
    const uint32_t dim = means ? K_DIM : K_DIM / 2;
    moe_kv_row rows[POOL_ROWS];
    fill_values(weight, sizeof weight / sizeof weight[0], 21);
    fill_values(cosines, sizeof cosines / sizeof cosines[0], 22);
    fill_values(sines, sizeof sines / sizeof sines[0], 23);
    open_cache(&c, device, type, 1);
    store_all(&c, false);
    store_all(&c, true);
    for (uint32_t r = 0; r < POOL_ROWS; r++) {
        rows[r] = row_at(&c, r % 2 == 0, pool_rows[r]);
    }
    float *scratch = device_alloc(device, (2 * POOL + 1) * dim * sizeof(float));
    float *device_weight = device_upload(device, weight, sizeof weight);
    const moe_key_pool pool = {
        .layout = c.layers[1],
        .rows = rows,
        .pooled = means ? 0 : moe_kv_row_bytes(type, dim),
        .n = POOL,
        .dim = dim,
        .means = means,
        .weight = device_weight,
        .eps = 1e-5f,
        .rope = {.n_rot = N_ROT, .interleaved = type == MOE_KV_F32, .cos = cosines, .sin = sines},
        .scratch = scratch};
    assert_int_equal(device->ops->pool_keys(device, &pool, POOL_ROWS, NULL), MOE_OK);
    for (uint32_t p = 0; p < N_PAGES; p++, bytes += 2 * c.page_bytes) {
        assert_int_equal(device->ops->download(device, bytes, c.plain[p], c.page_bytes, NULL),
                         MOE_OK);
        assert_int_equal(
            device->ops->download(device, bytes + c.page_bytes, c.tree[p], c.page_bytes, NULL),
            MOE_OK);
    }
    device->ops->free(device, scratch, (2 * POOL + 1) * dim * sizeof(float));
    device->ops->free(device, device_weight, sizeof weight);
    close_cache(&c);
}

static void keys_of_pools(void **state)
{
    (void)state;
    static const moe_kv_type types[] = {MOE_KV_F16, MOE_KV_F32, MOE_KV_Q8_0};
    enum { BYTES = 1 << 20 };
    uint8_t *expected = calloc(6, BYTES), *got = calloc(1, BYTES);
    for (size_t i = 0; device_spec_at(i) != NULL; i++) {
        device_fixture fixture;
        open_device(&fixture, device_spec_at(i));
        for (int n = 0; n < 6; n++) {
            uint8_t *first = expected + (size_t)n * BYTES;
            memset(got, 0, BYTES); /* pages of other types are of other sizes */
            pool_keys(fixture.device, types[n / 2], n % 2 == 1, i == 0 ? first : got);
            assert_true(i == 0 || memcmp(got, first, BYTES) == 0);
        }
        close_device(&fixture);
    }
    free(expected);
    free(got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_of_trees),
        cmocka_unit_test(keys_of_pools),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
