/* SPDX-License-Identifier: MIT */
/* Calls that stand for several have the bits of the single ones, on every device that lists them;
 * the others do not have them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "cpu/kernels/vector_ops.h"
#include "device_fixture.h"

#define ROWS   3u
#define RANKS  2u
#define N      96u /* of the stream */
#define DIM    32u
#define N_HEAD 4u
#define N_KV   2u
#define N_ROT  24u
#define EPS    1e-5f

static float *upload_values(moe_device *device, size_t n, uint32_t seed)
{
    float values[ROWS * RANKS * N * 2];
    assert_true(n <= sizeof values / sizeof values[0]);
    fill_values(values, n, seed);
    return device_upload(device, values, n * sizeof *values);
}

static void reserve(moe_device *device, uint32_t n)
{
    moe_device_limits limits = {
        .linear = {ROWS, n}, .ff = {{ROWS, N}}, .max_v_dim = DIM, .max_head_group = N_HEAD};
    assert_int_equal(device->ops->reserve(device, &limits, NULL), MOE_OK);
}

/* ---- Sums and their norms ---- */

typedef struct stream {
    float *outs, *x, *branch, *weight, *norm; /* device */
    float mixed[ROWS * RANKS];
} stream;

static stream make_stream(moe_device *device)
{
    stream s = {.outs = upload_values(device, ROWS * RANKS * N, 1),
                .x = upload_values(device, ROWS * N, 2),
                .branch = upload_values(device, ROWS * N, 3),
                .weight = upload_values(device, N, 4),
                .norm = device_alloc(device, ROWS * N * sizeof(float))};
    fill_values(s.mixed, ROWS * RANKS, 5);
    s.mixed[3] = 0.0f; /* passed over */
    return s;
}

/* The stream, its norm and the sum of experts; frees the rest. */
static void take_stream(moe_device *device, stream *s, float result[3][ROWS * N])
{
    float *const from[] = {s->x, s->norm, s->branch};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(device->ops->download(device, result[i], from[i], sizeof result[i], NULL),
                         MOE_OK);
        device->ops->free(device, from[i], sizeof result[i]);
    }
    device->ops->free(device, s->outs, ROWS * RANKS * N * sizeof(float));
    device->ops->free(device, s->weight, N * sizeof(float));
}

static void check_add_norm(moe_device *device, bool combines, bool on_device)
{
    float expected[3][ROWS * N], result[3][ROWS * N];
    stream s = make_stream(device);
    moe_combine combine = {
        .outs = s.outs, .weights = s.mixed, .n_ranks = RANKS, .n = N, .y = s.branch};
    const moe_device_ops *ops = device->ops;
    if (combines) {
        assert_int_equal(ops->combine(device, &combine, ROWS, NULL), MOE_OK);
    }
    assert_int_equal(ops->add(device, s.x, s.branch, s.x, ROWS * N, NULL), MOE_OK);
    assert_int_equal(ops->rms_norm(device, s.x, s.weight, s.norm, ROWS, N, N, EPS, NULL), MOE_OK);
    take_stream(device, &s, expected);
    s = make_stream(device);
    float *mixed = device_upload(device, s.mixed, sizeof s.mixed);
    combine.outs = s.outs;
    combine.weights = on_device ? mixed : s.mixed;
    combine.weights_on_device = on_device;
    combine.y = s.branch;
    const moe_add_norm norm = {.combine = combines ? &combine : NULL,
                               .a = s.x,
                               .b = s.branch,
                               .sum = s.x,
                               .weight = s.weight,
                               .y = s.norm,
                               .n = N,
                               .eps = EPS};
    assert_int_equal(ops->add_norm(device, &norm, ROWS, NULL), MOE_OK);
    take_stream(device, &s, result);
    ops->free(device, mixed, sizeof s.mixed);
    assert_memory_equal(result, expected, sizeof expected);
    assert_memory_not_equal(expected[0], expected[1], sizeof expected[0]);
}

static void check_add_norms(moe_device *device)
{
    const bool has = (device->forms & MOE_FORM_BIT(MOE_FORM_ADD_NORM)) != 0;
    assert_int_equal(device->ops->add_norm != NULL, has);
    for (int narrow = 0; narrow < 2 && has; narrow++) { /* at first there is no room for the rows */
        check_add_norm(device, false, false);
        check_add_norm(device, true, false);
        check_add_norm(device, true, true);
        if (narrow == 0) {
            reserve(device, N);
        }
    }
}

static void add_norms(void **state)
{
    (void)state;
    for_every_device(check_add_norms);
}

/* ---- Heads of queries and keys ---- */

enum { Q_FLOATS = ROWS * N_HEAD * DIM, K_FLOATS = ROWS * N_KV * DIM };

typedef struct heads_result {
    float q[Q_FLOATS], k[K_FLOATS];
    uint8_t page[2 * N_KV * MOE_KV_PAGE * DIM * sizeof(float)];
} heads_result;

static void run_heads(moe_device *device, bool normed, bool fused, heads_result *result)
{
    const moe_device_ops *ops = device->ops;
    float cos[ROWS * N_ROT / 2], sin[ROWS * N_ROT / 2];
    const size_t row_bytes = moe_kv_row_bytes(MOE_KV_F16, DIM);
    fill_values(cos, ROWS * N_ROT / 2, 6);
    fill_values(sin, ROWS * N_ROT / 2, 7);
    memset(result->page, 0x5a, sizeof result->page);
    float *q = upload_values(device, Q_FLOATS, 8), *k = upload_values(device, K_FLOATS, 9);
    float *v = upload_values(device, K_FLOATS, 10), *weights = upload_values(device, 2 * DIM, 11);
    void *page = device_upload(device, result->page, sizeof result->page);
    moe_kv_row rows[ROWS];
    for (uint32_t r = 0; r < ROWS; r++) {
        rows[r] = moe_kv_row_at(&page, 5 + r);
    }
    const moe_kv_layout layout = {.type = MOE_KV_F16,
                                  .n_head_kv = N_KV,
                                  .k_dim = DIM,
                                  .v_dim = DIM,
                                  .k_row_bytes = row_bytes,
                                  .v_row_bytes = row_bytes,
                                  .v_offset = N_KV * MOE_KV_PAGE * row_bytes};
    moe_rope turn_q = {q, (size_t)N_HEAD * DIM, DIM, N_HEAD, N_ROT, false, cos, sin};
    moe_rope turn_k = {k, (size_t)N_KV * DIM, DIM, N_KV, N_ROT, false, cos, sin};
    const moe_heads_store job = {.norms = {normed ? weights : NULL, normed ? weights + DIM : NULL},
                                 .eps = EPS,
                                 .q = turn_q,
                                 .k = turn_k,
                                 .layout = layout,
                                 .rows = rows,
                                 .v = v,
                                 .v_stride = N_KV * DIM};
    if (fused) {
        assert_int_equal(ops->heads_store(device, &job, ROWS, NULL), MOE_OK);
    } else if (normed) {
        assert_int_equal(ops->rms_norm(device, q, weights, q, ROWS * N_HEAD, DIM, DIM, EPS, NULL),
                         MOE_OK);
        assert_int_equal(
            ops->rms_norm(device, k, weights + DIM, k, ROWS * N_KV, DIM, DIM, EPS, NULL), MOE_OK);
    }
    if (!fused) {
        assert_int_equal(ops->rope(device, &turn_q, ROWS, NULL), MOE_OK);
        assert_int_equal(ops->rope(device, &turn_k, ROWS, NULL), MOE_OK);
        assert_int_equal(
            ops->kv_store(device, &layout, rows, ROWS, k, N_KV * DIM, v, N_KV * DIM, NULL), MOE_OK);
    }
    assert_int_equal(ops->download(device, result->q, q, sizeof result->q, NULL), MOE_OK);
    assert_int_equal(ops->download(device, result->k, k, sizeof result->k, NULL), MOE_OK);
    assert_int_equal(ops->download(device, result->page, page, sizeof result->page, NULL), MOE_OK);
    ops->free(device, q, sizeof result->q);
    ops->free(device, k, sizeof result->k);
    ops->free(device, v, sizeof result->k);
    ops->free(device, weights, 2 * DIM * sizeof(float));
    ops->free(device, page, sizeof result->page);
}

static void check_heads(moe_device *device)
{
    static heads_result expected, result;
    const bool has = (device->forms & MOE_FORM_BIT(MOE_FORM_HEADS)) != 0;
    assert_int_equal(device->ops->heads_store != NULL, has);
    for (int normed = 0; normed < 2 && has; normed++) {
        run_heads(device, normed != 0, false, &expected);
        run_heads(device, normed != 0, true, &result);
        assert_memory_equal(&result, &expected, sizeof expected);
    }
}

static void heads(void **state)
{
    (void)state;
    for_every_device(check_heads);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(add_norms), cmocka_unit_test(heads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
