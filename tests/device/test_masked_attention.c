/* SPDX-License-Identifier: MIT */
/* Devices with masked attention and other forms of experts (moe_form) against sums in double:
 * windows, chunks, sinks, scales of rows; biases, the clamped SwiGLU, scales of expert inputs.
 * Pages that no row sees are missing, and rows of a tree have a timeline's bits. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cpu/kernels/vector_ops.h"
#include "device_fixture.h"

#define N_POSITIONS 300u
#define N_PAGES     6u /* the last for a tree's rows */
#define DIM         32u
#define N_KV_HEAD   2u
#define N_HEAD      4u
#define N_QUERIES   3u

static float keys[N_POSITIONS * N_KV_HEAD * DIM], values[N_POSITIONS * N_KV_HEAD * DIM];
static float queries[N_QUERIES * N_HEAD * DIM];

typedef struct mask_case {
    uint32_t positions[N_QUERIES];
    uint32_t window, chunk;
    bool sinks, scales;
} mask_case;

static const mask_case masks[] = {
    {{0, 130, 299}, 0, 0, true, false},    {{5, 64, 299}, 1, 0, false, false},
    {{5, 64, 299}, 1, 0, true, false},     {{63, 64, 299}, 20, 0, false, true},
    {{63, 127, 299}, 64, 0, true, false},  {{100, 164, 260}, 65, 0, true, true},
    {{10, 200, 299}, 400, 0, true, false}, {{99, 100, 299}, 0, 100, false, false},
    {{63, 64, 250}, 0, 64, true, true},    {{90, 150, 299}, 50, 80, true, false},
};

static const float sink_values[N_HEAD] = {0.5f, -2.0f, 3.0f, 0.0f};
static const float scale_values[N_QUERIES] = {1.0f, 1.5f, 0.25f};

static moe_kv_layout layout_of(void)
{
    size_t row = moe_kv_row_bytes(MOE_KV_F32, DIM);
    return (moe_kv_layout){.type = MOE_KV_F32,
                           .n_head_kv = N_KV_HEAD,
                           .k_dim = DIM,
                           .v_dim = DIM,
                           .k_row_bytes = row,
                           .v_row_bytes = row,
                           .v_offset = N_KV_HEAD * MOE_KV_PAGE * row};
}

/* One head of one query: softmax over what it sees, and its sink, in double. */
static void attend_exactly(const mask_case *c, uint32_t query, uint32_t head, double out[DIM])
{
    const float *q = queries + (query * N_HEAD + head) * DIM;
    uint32_t kv_head = head / (N_HEAD / N_KV_HEAD);
    uint32_t position = c->positions[query];
    double scale = 0.7f * (double)(c->scales ? scale_values[query] : 1.0f);
    double sum = c->sinks ? exp((double)sink_values[head]) : 0.0;
    memset(out, 0, DIM * sizeof *out);
    for (uint32_t p = 0; p <= position; p++) {
        if ((c->window > 0 && position - p >= c->window) ||
            (c->chunk > 0 && p / c->chunk != position / c->chunk)) {
            continue;
        }
        double score = 0.0;
        for (uint32_t i = 0; i < DIM; i++) {
            score += (double)q[i] * keys[(p * N_KV_HEAD + kv_head) * DIM + i];
        }
        double weight = exp(scale * score);
        sum += weight;
        for (uint32_t i = 0; i < DIM; i++) {
            out[i] += weight * values[(p * N_KV_HEAD + kv_head) * DIM + i];
        }
    }
    for (uint32_t i = 0; i < DIM; i++) {
        out[i] /= sum;
    }
}

typedef struct attention_case {
    moe_device *device;
    moe_kv_layout layout;
    void *pages[N_PAGES];
    float *q, *out, *sinks;
} attention_case;

static void store(attention_case *a, uint32_t n, const moe_kv_row *rows, uint32_t first)
{
    size_t stride = (size_t)N_KV_HEAD * DIM;
    float *k = device_upload(a->device, keys + first * stride, n * stride * sizeof(float));
    float *v = device_upload(a->device, values + first * stride, n * stride * sizeof(float));
    assert_int_equal(
        a->device->ops->kv_store(a->device, &a->layout, rows, n, k, stride, v, stride, NULL),
        MOE_OK);
    assert_int_equal(a->device->ops->sync(a->device, NULL), MOE_OK);
    a->device->ops->free(a->device, k, n * stride * sizeof(float));
    a->device->ops->free(a->device, v, n * stride * sizeof(float));
}

static void run_attention(const attention_case *a, const mask_case *c, const moe_kv_row *rows,
                          float *result)
{
    size_t bytes = sizeof queries;
    moe_attention attention = {.layout = a->layout,
                               .rows = rows,
                               .q = a->q,
                               .n_head = N_HEAD,
                               .scale = 0.7f,
                               .window = c->window,
                               .chunk = c->chunk,
                               .sinks = c->sinks ? a->sinks : NULL,
                               .row_scales = c->scales ? scale_values : NULL,
                               .out = a->out};
    assert_int_equal(a->device->ops->attention(a->device, &attention, N_QUERIES, NULL), MOE_OK);
    assert_int_equal(a->device->ops->download(a->device, result, a->out, bytes, NULL), MOE_OK);
}

/* Pages that no query sees are taken away. */
static void check_mask(const attention_case *a, const mask_case *c)
{
    static float result[N_QUERIES * N_HEAD * DIM], again[N_QUERIES * N_HEAD * DIM];
    moe_kv_row rows[N_QUERIES];
    void *few[N_QUERIES][N_PAGES] = {{NULL}};
    for (uint32_t i = 0; i < N_QUERIES; i++) {
        moe_attention mask = {.window = c->window, .chunk = c->chunk};
        uint32_t first = moe_attention_first(&mask, c->positions[i]) / MOE_KV_PAGE;
        for (uint32_t p = first; p <= c->positions[i] / MOE_KV_PAGE; p++) {
            few[i][p] = a->pages[p];
        }
        rows[i] = moe_kv_row_at(few[i], c->positions[i]);
    }
    run_attention(a, c, rows, result);
    for (uint32_t i = 0; i < N_QUERIES; i++) {
        for (uint32_t h = 0; h < N_HEAD; h++) {
            double exact[DIM];
            attend_exactly(c, i, h, exact);
            for (uint32_t e = 0; e < DIM; e++) {
                double got = (double)result[(i * N_HEAD + h) * DIM + e];
                assert_true(fabs(got - exact[e]) <= 2e-5);
            }
        }
    }
    /* The last row's own position is stored elsewhere, as a tree's is. */
    uint32_t path = (N_PAGES - 1) * MOE_KV_PAGE + 7;
    rows[N_QUERIES - 1] = (moe_kv_row){.pages = a->pages,
                                       .position = c->positions[N_QUERIES - 1],
                                       .stored = path,
                                       .path = &path,
                                       .path_first = c->positions[N_QUERIES - 1]};
    attention_case copy = *a;
    store(&copy, 1, &rows[N_QUERIES - 1], c->positions[N_QUERIES - 1]);
    run_attention(a, c, rows, again);
    assert_memory_equal(again, result, sizeof result);
}

static void masked_attention(void **state)
{
    (void)state;
    fill_values(keys, sizeof keys / sizeof keys[0], 3);
    fill_values(values, sizeof values / sizeof values[0], 4);
    fill_values(queries, sizeof queries / sizeof queries[0], 5);
    for (size_t i = 0; device_spec_at(i) != NULL; i++) {
        device_fixture fixture;
        open_device(&fixture, device_spec_at(i));
        moe_device *device = fixture.device;
        moe_device_limits limits = {
            .linear = {1, DIM}, .max_v_dim = DIM, .max_head_group = N_HEAD / N_KV_HEAD};
        assert_true((device->forms & MOE_FORM_BIT(MOE_FORM_ATTEND_WINDOW)) != 0);
        assert_int_equal(device->ops->reserve(device, &limits, NULL), MOE_OK);
        attention_case a = {.device = device, .layout = layout_of()};
        size_t page_bytes = 2 * a.layout.v_offset;
        for (uint32_t p = 0; p < N_PAGES; p++) {
            a.pages[p] = device_alloc(device, page_bytes);
        }
        static moe_kv_row rows[N_POSITIONS];
        for (uint32_t p = 0; p < N_POSITIONS; p++) {
            rows[p] = moe_kv_row_at(a.pages, p);
        }
        store(&a, N_POSITIONS, rows, 0);
        a.q = device_upload(device, queries, sizeof queries);
        a.out = device_alloc(device, sizeof queries);
        a.sinks = device_upload(device, sink_values, sizeof sink_values);
        for (size_t m = 0; m < sizeof masks / sizeof masks[0]; m++) {
            check_mask(&a, &masks[m]);
        }
        for (uint32_t p = 0; p < N_PAGES; p++) {
            device->ops->free(device, a.pages[p], page_bytes);
        }
        device->ops->free(device, a.q, sizeof queries);
        device->ops->free(device, a.out, sizeof queries);
        device->ops->free(device, a.sinks, sizeof sink_values);
        close_device(&fixture);
    }
}

/* ---- Experts ---- */

#define N_IN   32u
#define N_FF   64u
#define N_ROWS 5u

static float x[N_ROWS * N_IN], matrices[3][N_FF * N_IN], biases[3][N_FF];
static const float x_scales[N_ROWS] = {1.0f, 0.5f, 0.0f, 2.0f, 0.125f};

static void run_exactly(bool clamped, bool scaled, uint32_t row, double out[N_IN])
{
    double h[N_FF];
    double scale = scaled ? (double)x_scales[row] : 1.0;
    for (uint32_t f = 0; f < N_FF; f++) {
        double g = clamped ? biases[0][f] : 0.0, u = clamped ? biases[1][f] : 0.0;
        for (uint32_t i = 0; i < N_IN; i++) {
            g += scale * (double)x[row * N_IN + i] * matrices[0][f * N_IN + i];
            u += scale * (double)x[row * N_IN + i] * matrices[1][f * N_IN + i];
        }
        g = clamped ? fmin(g, 0.75) : g;
        u = clamped ? fmax(fmin(u, 0.75), -0.75) + 1.0 : u;
        h[f] = g / (1.0 + exp((clamped ? -1.702 : -1.0) * g)) * u;
    }
    for (uint32_t i = 0; i < N_IN; i++) {
        out[i] = clamped ? biases[2][i] : 0.0;
        for (uint32_t f = 0; f < N_FF; f++) {
            out[i] += h[f] * matrices[2][i * N_FF + f];
        }
    }
}

static void check_expert(moe_device *device, bool clamped, bool scaled)
{
    static const uint32_t out_index[N_ROWS] = {4, 0, 3, 1, 2};
    float *device_x = device_upload(device, x, sizeof x);
    float *out = device_alloc(device, sizeof x);
    void *m[3], *b[3];
    for (int i = 0; i < 3; i++) {
        m[i] = device_upload(device, matrices[i], sizeof matrices[i]);
        b[i] = device_upload(device, biases[i], sizeof biases[i]);
    }
    moe_expert_work work = {.gate = {MOE_DTYPE_F32, m[0], N_IN, N_FF, N_IN * sizeof(float), 0},
                            .up = {MOE_DTYPE_F32, m[1], N_IN, N_FF, N_IN * sizeof(float), 0},
                            .down = {MOE_DTYPE_F32, m[2], N_FF, N_IN, N_FF * sizeof(float), 0},
                            .gate_bias = clamped ? b[0] : NULL,
                            .up_bias = clamped ? b[1] : NULL,
                            .down_bias = clamped ? b[2] : NULL,
                            .activation = {.kind = MOE_ACTIVATION_SILU},
                            .x_scales = scaled ? x_scales : NULL,
                            .out_index = out_index,
                            .n_rows = N_ROWS};
    if (clamped) {
        work.activation = (moe_activation){MOE_ACTIVATION_SWIGLU_CLAMPED, 1.702f, 0.75f};
    }
    float result[N_ROWS * N_IN];
    assert_int_equal(
        device->ops->experts(device, device_x, N_ROWS, N_IN, &work, 1, out, N_IN, NULL), MOE_OK);
    assert_int_equal(device->ops->download(device, result, out, sizeof result, NULL), MOE_OK);
    for (uint32_t r = 0; r < N_ROWS; r++) {
        double exact[N_IN];
        run_exactly(clamped, scaled, r, exact);
        for (uint32_t i = 0; i < N_IN; i++) {
            assert_true(fabs((double)result[out_index[r] * N_IN + i] - exact[i]) <= 3e-5);
        }
    }
    for (int i = 0; i < 3; i++) {
        device->ops->free(device, m[i], sizeof matrices[i]);
        device->ops->free(device, b[i], sizeof biases[i]);
    }
    device->ops->free(device, device_x, sizeof x);
    device->ops->free(device, out, sizeof x);
}

static void expert_forms(void **state)
{
    (void)state;
    fill_values(x, N_ROWS * N_IN, 11);
    for (uint32_t i = 0; i < 3; i++) {
        fill_values(matrices[i], N_FF * N_IN, 12 + i);
        fill_values(biases[i], N_FF, 15 + i);
    }
    for (size_t i = 0; device_spec_at(i) != NULL; i++) {
        device_fixture fixture;
        open_device(&fixture, device_spec_at(i));
        moe_device_limits limits = {
            .linear = {N_ROWS, N_IN}, .ff = {{N_ROWS, N_FF}}, .max_v_dim = 1, .max_head_group = 1};
        assert_true((fixture.device->forms & MOE_FORM_BIT(MOE_FORM_EXPERTS_GELU)) != 0);
        assert_int_equal(fixture.device->ops->reserve(fixture.device, &limits, NULL), MOE_OK);
        check_expert(fixture.device, false, false);
        check_expert(fixture.device, true, false);
        check_expert(fixture.device, false, true);
        close_device(&fixture);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masked_attention),
        cmocka_unit_test(expert_forms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
