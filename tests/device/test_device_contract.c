/* SPDX-License-Identifier: MIT */
/* What every device must do. Results are compared bit by bit with those of the first device, the
 * CPU. */
#include <math.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device_fixture.h"

#define N_IN   64u
#define N_FF   96u
#define N_ROWS 5u

static void check_memory(moe_device *device)
{
    const moe_device_ops *ops = device->ops;
    enum { BYTES = 100000 };
    uint8_t *bytes = malloc(BYTES);
    uint8_t *back = calloc(BYTES, 1);
    for (size_t i = 0; i < BYTES; i++) {
        bytes[i] = (uint8_t)(i * 31 + i / 256);
    }
    uint8_t *a = device_upload(device, bytes, BYTES);
    uint8_t *b = device_alloc(device, BYTES);
    assert_int_equal((uintptr_t)a % 64, 0);
    assert_int_equal((uintptr_t)b % 64, 0);
    assert_int_equal(ops->copy(device, b, a, BYTES, NULL), MOE_OK);
    assert_int_equal(ops->upload(device, a, back, BYTES, NULL), MOE_OK);
    assert_int_equal(ops->sync(device, NULL), MOE_OK);
    assert_int_equal(ops->download(device, back, b, BYTES, NULL), MOE_OK);
    assert_memory_equal(back, bytes, BYTES);
    assert_int_equal(ops->download(device, back + 7, b + 13, 1000, NULL), MOE_OK);
    assert_memory_equal(back + 7, bytes + 13, 1000);
    ops->free(device, a, BYTES);
    ops->free(device, b, BYTES);
    free(bytes);
    free(back);
}

static void memory(void **state)
{
    (void)state;
    for_every_device(check_memory);
}

/* Rows of the host go where their numbers say, more of them than a staging buffer has room for; and
 * what is asked for before is there when the call that waits returns. */
static void check_rows_of_the_host(moe_device *device)
{
    enum { N = 1031, ROWS = 300 };
    const moe_device_ops *ops = device->ops;
    size_t bytes = (size_t)ROWS * N * sizeof(float);
    float *x = malloc(bytes), *back = calloc(ROWS, N * sizeof(float));
    uint32_t numbers[ROWS];
    fill_values(x, (size_t)ROWS * N, 9);
    for (uint32_t r = 0; r < ROWS; r++) {
        numbers[r] = (r * 7 + 5) % ROWS; /* each once */
    }
    void *later = malloc(bytes);
    if (device->link != NULL) {
        free(later);
        assert_int_equal(device->link->host_alloc(device, bytes, &later, NULL), MOE_OK);
    }
    float *out = device_upload(device, back, bytes);
    assert_int_equal(ops->scatter(device, x, N, numbers, ROWS, out, NULL), MOE_OK);
    assert_int_equal(ops->download_later(device, later, out, bytes, NULL), MOE_OK);
    assert_int_equal(ops->scatter(device, x, N, numbers, 1, out, NULL), MOE_OK);
    assert_int_equal(ops->download(device, back, out, bytes, NULL), MOE_OK);
    assert_memory_equal(later, back, bytes);
    for (uint32_t r = 0; r < ROWS; r++) {
        assert_memory_equal(back + (size_t)numbers[r] * N, x + (size_t)r * N, N * sizeof(float));
    }
    if (device->link != NULL) {
        device->link->host_free(device, later, bytes);
    } else {
        free(later);
    }
    ops->free(device, out, bytes);
    free(x);
    free(back);
}

static void rows_of_the_host(void **state)
{
    (void)state;
    for_every_device(check_rows_of_the_host);
}

/* One expert over some rows, and their weighted sum. */
static void run_expert(moe_device *device, float *result)
{
    const moe_device_ops *ops = device->ops;
    moe_device_limits limits = {
        .linear = {N_ROWS, N_IN}, .ff = {{N_ROWS, N_FF}}, .max_v_dim = N_IN, .max_head_group = 1};
    float x[N_ROWS * N_IN], weights[3][N_FF * N_IN];
    float mix[N_ROWS];
    fill_values(x, N_ROWS * N_IN, 1);
    fill_values(mix, N_ROWS, 2);
    assert_true(ops->scratch_need(device, &limits) > 0);
    assert_int_equal(ops->reserve(device, &limits, NULL), MOE_OK);
    void *matrices[3];
    for (int i = 0; i < 3; i++) {
        fill_values(weights[i], N_FF * N_IN, 3 + (uint32_t)i);
        matrices[i] = device_upload(device, weights[i], sizeof weights[i]);
    }
    moe_weight in = {MOE_DTYPE_F32, matrices[0], N_IN, N_FF, N_IN * sizeof(float), 0};
    moe_weight up = {MOE_DTYPE_F32, matrices[1], N_IN, N_FF, N_IN * sizeof(float), 0};
    moe_weight down = {MOE_DTYPE_F32, matrices[2], N_FF, N_IN, N_FF * sizeof(float), 0};
    moe_expert_work work = {.gate = in, .up = up, .down = down, .n_rows = N_ROWS};
    float *device_x = device_upload(device, x, sizeof x);
    float *out = device_alloc(device, sizeof x);
    float *y = device_alloc(device, sizeof x);
    moe_combine combine = {.outs = out, .weights = mix, .n_ranks = 1, .n = N_IN, .y = y};
    assert_int_equal(ops->experts(device, device_x, N_ROWS, N_IN, &work, 1, out, N_IN, NULL),
                     MOE_OK);
    assert_int_equal(ops->combine(device, &combine, N_ROWS, NULL), MOE_OK);
    assert_int_equal(ops->download(device, result, y, sizeof x, NULL), MOE_OK);
    for (int i = 0; i < 3; i++) {
        ops->free(device, matrices[i], sizeof weights[i]);
    }
    ops->free(device, device_x, sizeof x);
    ops->free(device, out, sizeof x);
    ops->free(device, y, sizeof x);
}

static void same_arithmetic(void **state)
{
    (void)state;
    float expected[N_ROWS * N_IN], result[N_ROWS * N_IN];
    for (size_t i = 0; device_spec_at(i) != NULL; i++) {
        device_fixture fixture;
        open_device(&fixture, device_spec_at(i));
        run_expert(fixture.device, i == 0 ? expected : result);
        close_device(&fixture);
        if (i > 0) {
            assert_memory_equal(result, expected, sizeof expected);
        }
    }
    assert_true(expected[0] != 0.0f && expected[0] != expected[1]);
}

/* Products of rows that were normed, changed, normed anew, and that are products themselves: each
 * takes the rows as they are by then, whatever the device has kept of them. */
static void use_rows_again(moe_device *device, float *result)
{
    enum { N = 96, ROWS = 3, BLOCK_BYTES = 34, ROW_BYTES = N / 32 * BLOCK_BYTES };
    const moe_device_ops *ops = device->ops;
    moe_device_limits limits = {
        .linear = {ROWS, N}, .ff = {{ROWS, N}}, .max_v_dim = N, .max_head_group = 1};
    const size_t bytes = ROWS * N * sizeof(float);
    uint8_t matrix[N * ROW_BYTES];
    float values[3][ROWS * N], weight[N];
    for (uint32_t i = 0; i < sizeof matrix; i++) {
        uint32_t at = i % BLOCK_BYTES; /* of Q8_0: a half of 1 / 16, then codes */
        matrix[i] = at == 0 ? 0 : at == 1 ? 0x2c : (uint8_t)(i * 37 + i / 7);
    }
    assert_int_equal(ops->reserve(device, &limits, NULL), MOE_OK);
    float *x[3], *out[6];
    for (uint32_t i = 0; i < 3; i++) {
        fill_values(values[i], ROWS * N, 40 + i);
        x[i] = device_upload(device, values[i], bytes);
    }
    fill_values(weight, N, 43);
    float *norm_weight = device_upload(device, weight, sizeof weight);
    void *weights = device_upload(device, matrix, sizeof matrix);
    for (uint32_t i = 0; i < 6; i++) {
        out[i] = device_alloc(device, bytes);
    }
    moe_linear linear[6];
    for (uint32_t i = 0; i < 6; i++) {
        linear[i] = (moe_linear){{MOE_DTYPE_Q8_0, weights, N, N, ROW_BYTES, 0}, NULL, out[i]};
    }
    float *y = x[2];
    assert_int_equal(ops->rms_norm(device, x[0], norm_weight, y, ROWS, N, N, 1e-6f, NULL), MOE_OK);
    assert_int_equal(ops->linear(device, y, ROWS - 1, N, &linear[1], 1, NULL), MOE_OK);
    assert_int_equal(ops->linear(device, y, ROWS, N, &linear[0], 1, NULL), MOE_OK);
    assert_int_equal(ops->add(device, y, x[1], y, ROWS * N, NULL), MOE_OK);
    assert_int_equal(ops->linear(device, y, ROWS, N, &linear[2], 1, NULL), MOE_OK);
    assert_int_equal(ops->add(device, x[0], x[1], x[0], ROWS * N, NULL), MOE_OK);
    assert_int_equal(ops->rms_norm(device, x[0], norm_weight, y, ROWS, N, N, 1e-6f, NULL), MOE_OK);
    assert_int_equal(ops->linear(device, y, ROWS, N, &linear[3], 1, NULL), MOE_OK);
    moe_linear over = linear[4];
    over.out = y; /* of rows elsewhere, over those that were normed */
    assert_int_equal(ops->rms_norm(device, x[0], norm_weight, y, ROWS, N, N, 1e-6f, NULL), MOE_OK);
    assert_int_equal(ops->linear(device, x[1], ROWS, N, &over, 1, NULL), MOE_OK);
    assert_int_equal(ops->linear(device, y, ROWS, N, &linear[4], 1, NULL), MOE_OK);
    assert_int_equal(ops->linear(device, y, ROWS, N, &over, 1, NULL), MOE_OK);
    assert_int_equal(ops->linear(device, y, ROWS, N, &linear[5], 1, NULL), MOE_OK);
    for (uint32_t i = 0; i < 6; i++) {
        size_t n = i == 1 ? (ROWS - 1) * N : ROWS * N;
        assert_int_equal(
            ops->download(device, result + i * ROWS * N, out[i], n * sizeof(float), NULL), MOE_OK);
        ops->free(device, out[i], bytes);
    }
    assert_int_equal(ops->download(device, result + 6 * ROWS * N, x[0], bytes, NULL), MOE_OK);
    for (uint32_t i = 0; i < 3; i++) {
        ops->free(device, x[i], bytes);
    }
    ops->free(device, norm_weight, sizeof weight);
    ops->free(device, weights, sizeof matrix);
}

static void rows_used_again(void **state)
{
    (void)state;
    static float expected[7 * 3 * 96], result[7 * 3 * 96];
    for (size_t i = 0; device_spec_at(i) != NULL; i++) {
        device_fixture fixture;
        open_device(&fixture, device_spec_at(i));
        use_rows_again(fixture.device, i == 0 ? expected : result);
        close_device(&fixture);
        if (i > 0) {
            assert_memory_equal(result, expected, sizeof expected);
        }
    }
    for (uint32_t i = 2; i < 6; i++) {
        assert_memory_not_equal(&expected[(size_t)i * 3 * 96], expected, 3 * 96 * sizeof(float));
    }
}

/* A rank of weight 0 is passed over, whatever its row holds; only the others count. */
static void check_dropped_ranks(moe_device *device)
{
    enum { RANKS = 4, KEPT = 2 };
    static const bool dropped[N_ROWS][RANKS] = {{true, false, true, false},
                                                {false, true, true, false},
                                                {false, false, true, true},
                                                {true, true, false, false},
                                                {false, true, false, true}};
    float outs[N_ROWS][RANKS][N_IN], kept[N_ROWS][KEPT][N_IN], y[N_ROWS][N_IN],
        expected[N_ROWS][N_IN];
    float weights[N_ROWS][RANKS], kept_weights[N_ROWS][KEPT];
    fill_values(&outs[0][0][0], sizeof outs / sizeof(float), 5);
    fill_values(&weights[0][0], N_ROWS * RANKS, 6);
    for (uint32_t r = 0; r < N_ROWS; r++) {
        for (uint32_t k = 0, at = 0; k < RANKS; k++) {
            if (dropped[r][k]) {
                weights[r][k] = k % 2 == 0 ? 0.0f : -0.0f;
                memset(outs[r][k], 0xff, sizeof outs[r][k]); /* NaNs */
                continue;
            }
            memcpy(kept[r][at], outs[r][k], sizeof outs[r][k]);
            kept_weights[r][at++] = weights[r][k];
        }
    }
    float *device_outs = device_upload(device, outs, sizeof outs);
    float *device_kept = device_upload(device, kept, sizeof kept);
    float *device_y = device_alloc(device, sizeof y);
    moe_combine all = {device_outs, &weights[0][0], RANKS, N_IN, device_y, false};
    moe_combine few = {device_kept, &kept_weights[0][0], KEPT, N_IN, device_y, false};
    assert_int_equal(device->ops->combine(device, &few, N_ROWS, NULL), MOE_OK);
    assert_int_equal(device->ops->download(device, expected, device_y, sizeof y, NULL), MOE_OK);
    assert_int_equal(device->ops->combine(device, &all, N_ROWS, NULL), MOE_OK);
    assert_int_equal(device->ops->download(device, y, device_y, sizeof y, NULL), MOE_OK);
    assert_memory_equal(y, expected, sizeof y);
    assert_true(y[0][0] != 0.0f);
    memset(weights, 0, sizeof weights);
    assert_int_equal(device->ops->combine(device, &all, N_ROWS, NULL), MOE_OK);
    assert_int_equal(device->ops->download(device, y, device_y, sizeof y, NULL), MOE_OK);
    memset(expected, 0, sizeof expected);
    assert_memory_equal(y, expected, sizeof y);
    device->ops->free(device, device_outs, sizeof outs);
    device->ops->free(device, device_kept, sizeof kept);
    device->ops->free(device, device_y, sizeof y);
}

/* A gate stands elsewhere than what it gates, and touches no more than its columns. */
static void check_gates(moe_device *device)
{
    enum { N = 19, STRIDE = 24 };
    float gate[N_ROWS * 2 * STRIDE], x[N_ROWS * STRIDE], y[N_ROWS * STRIDE];
    fill_values(gate, N_ROWS * 2 * STRIDE, 7);
    fill_values(x, N_ROWS * STRIDE, 8);
    float *device_gate = device_upload(device, gate, sizeof gate);
    for (int kind = MOE_GATING_SIGMOID; kind <= MOE_GATING_SOFTPLUS + 1; kind++) {
        float *device_x = device_upload(device, x, sizeof x);
        bool one = kind > MOE_GATING_SOFTPLUS;
        moe_gating gating = {one ? MOE_GATING_SOFTPLUS : (moe_gating_kind)kind,
                             one,
                             device_gate + STRIDE,
                             2 * (size_t)STRIDE,
                             device_x,
                             STRIDE,
                             N};
        assert_int_equal(device->ops->gate(device, &gating, N_ROWS, NULL), MOE_OK);
        assert_int_equal(device->ops->download(device, y, device_x, sizeof y, NULL), MOE_OK);
        for (uint32_t i = 0; i < N_ROWS * STRIDE; i++) {
            float g = gate[STRIDE + i / STRIDE * 2 * STRIDE + (one ? 0 : i % STRIDE)];
            float sigmoid = 1.0f / (1.0f + expf(-g));
            float softplus = log1pf(expf(g));
            const float factors[] = {sigmoid, g * sigmoid, g, softplus, softplus};
            float factor = i % STRIDE >= N ? 1.0f : factors[kind];
            assert_true(fabsf(y[i] - factor * x[i]) < 1e-6f);
        }
        device->ops->free(device, device_x, sizeof x);
    }
    device->ops->free(device, device_gate, sizeof gate);
}

static void gates(void **state)
{
    (void)state;
    for_every_device(check_gates);
}

static void dropped_ranks(void **state)
{
    (void)state;
    for_every_device(check_dropped_ranks);
}

/* Rows as long as a vocabulary, and rows without a greatest. */
static void rank_rows(moe_device *device, moe_greatest *result)
{
    enum { ROWS = 6, N = 5003 };
    const moe_device_ops *ops = device->ops;
    float *x = malloc(ROWS * N * sizeof *x);
    fill_values(x, ROWS * N, 31);
    x[1 * N + 4000] = x[1 * N + 4999] = 9.0f; /* the lower of equals */
    x[2 * N] = NAN;
    x[2 * N + 7] = 9.0f;
    x[3 * N + 4999] = INFINITY;
    for (uint32_t i = 0; i < N; i++) {
        x[4 * N + i] = i == 0 ? NAN : -INFINITY;
        x[5 * N + i] = i == 4002 ? 3.0f : -INFINITY;
    }
    float *device_x = device_upload(device, x, ROWS * N * sizeof *x);
    moe_greatest *out = device_alloc(device, ROWS * sizeof *out);
    assert_int_equal(ops->greatest(device, device_x, ROWS, N, out, NULL), MOE_OK);
    assert_int_equal(ops->download(device, result, out, ROWS * sizeof *out, NULL), MOE_OK);
    ops->free(device, device_x, ROWS * N * sizeof *x);
    ops->free(device, out, ROWS * sizeof *out);
    free(x);
    static const uint32_t indices[] = {4000, 7, 4999, 0, 4002};
    for (uint32_t r = 1; r < ROWS; r++) {
        assert_int_equal(result[r].index, indices[r - 1]);
    }
    assert_true(result[0].share > 0.0f && result[0].share < 1.0f);
    assert_true(isnan(result[2].share) && isnan(result[3].share) && isnan(result[4].share));
    assert_true(result[5].share == 1.0f);
}

static void greatest(void **state)
{
    (void)state;
    moe_greatest expected[6], result[6];
    for (size_t i = 0; device_spec_at(i) != NULL; i++) {
        device_fixture fixture;
        open_device(&fixture, device_spec_at(i));
        rank_rows(fixture.device, i == 0 ? expected : result);
        close_device(&fixture);
        if (i > 0) {
            assert_memory_equal(&result[0], &expected[0], sizeof result[0]);
            assert_memory_equal(&result[1], &expected[1], sizeof result[1]);
        }
    }
}

#define N_COPIES   MOE_MAX_COPIES
#define COPY_BYTES 50000u

/* The way back, beside copies to the device: all are under way at once, and bring the bytes. */
static void check_saves(moe_device *device, uint8_t *target, const uint8_t *expected)
{
    const moe_link_ops *link = device->link;
    uint64_t tickets[N_COPIES], other;
    void *host;
    assert_int_equal(link->host_alloc(device, N_COPIES * COPY_BYTES, &host, NULL), MOE_OK);
    memset(host, 0, N_COPIES * COPY_BYTES);
    uint8_t *more = device_alloc(device, COPY_BYTES);
    moe_copy_range there = {more, expected, COPY_BYTES};
    assert_int_equal(link->copy_begin(device, &there, 1, &other, NULL), MOE_OK);
    for (uint32_t i = 0; i < N_COPIES; i++) {
        uint8_t *to = (uint8_t *)host + i * COPY_BYTES;
        const uint8_t *from = target + i * COPY_BYTES;
        moe_copy_range ranges[2] = {{to, from, 20000},
                                    {to + 20000, from + 20000, COPY_BYTES - 20000}};
        assert_int_equal(link->save_begin(device, ranges, 2, &tickets[i], NULL), MOE_OK);
    }
    for (uint32_t i = 0; i < N_COPIES; i++) {
        while (link->save_state(device, tickets[i]) == MOE_COPY_UNDER_WAY) {
            sched_yield();
        }
        assert_int_equal(link->save_state(device, tickets[i]), MOE_OK);
        assert_memory_equal((uint8_t *)host + i * COPY_BYTES, expected + i * COPY_BYTES,
                            COPY_BYTES);
    }
    assert_int_equal(link->copy_wait(device, other, NULL), MOE_OK);
    moe_copy_range range = {host, target, 1};
    uint64_t ticket;
    moe_copy_range ranges[MOE_MAX_COPY_RANGES + 1] = {range};
    assert_int_equal(link->save_begin(device, ranges, MOE_MAX_COPY_RANGES + 1, &ticket, NULL),
                     MOE_ERR_ARGUMENT);
    device->ops->free(device, more, COPY_BYTES);
    link->host_free(device, host, N_COPIES * COPY_BYTES);
}

/* Several copies in flight: they end in order, and each has arrived when its ticket is done. */
static void check_copies(moe_device *device)
{
    const moe_link_ops *link = device->link;
    if (link == NULL) {
        assert_int_equal(device->memory_bytes, 0);
        return;
    }
    assert_true(device->memory_bytes > 0 && device->link_bytes_per_s > 0);
    uint64_t tickets[N_COPIES];
    void *host;
    assert_int_equal(link->host_alloc(device, N_COPIES * COPY_BYTES, &host, NULL), MOE_OK);
    fill_values(host, N_COPIES * COPY_BYTES / sizeof(float), 9);
    uint8_t *target = device_alloc(device, N_COPIES * COPY_BYTES);
    for (uint32_t i = 0; i < N_COPIES; i++) {
        size_t at = i * COPY_BYTES;
        moe_copy_range ranges[2] = {
            {target + at, (uint8_t *)host + at, 20000},
            {target + at + 20000, (uint8_t *)host + at + 20000, COPY_BYTES - 20000}};
        assert_int_equal(link->copy_begin(device, ranges, 2, &tickets[i], NULL), MOE_OK);
    }
    uint8_t *back = malloc(COPY_BYTES);
    for (uint32_t i = 0; i < N_COPIES; i++) {
        assert_int_equal(link->copy_wait(device, tickets[i], NULL), MOE_OK);
        for (uint32_t j = 0; j <= i; j++) {
            assert_int_equal(link->copy_state(device, tickets[j]), MOE_OK);
        }
        device->ops->download(device, back, target + i * COPY_BYTES, COPY_BYTES, NULL);
        assert_memory_equal(back, (uint8_t *)host + i * COPY_BYTES, COPY_BYTES);
    }
    check_saves(device, target, host);
    free(back);
    device->ops->free(device, target, N_COPIES * COPY_BYTES);
    link->host_free(device, host, N_COPIES * COPY_BYTES);
}

static void copies(void **state)
{
    (void)state;
    for_every_device(check_copies);
}

/* Some tokens' rows of a table, turned: recorded for some tokens, played for others. */
static void check_recording_of(moe_device *device, uint32_t n_rows)
{
    enum { STEPS = 7, TOKENS = 11, NUMBER = 3, MOST = 8 };
    const moe_device_ops *ops = device->ops;
    const moe_recording_ops *recording = device->recording;
    float values[TOKENS * N_IN], cos[MOST * N_IN / 2], sin[MOST * N_IN / 2];
    float direct[MOST * N_IN], played[MOST * N_IN];
    size_t bytes = n_rows * N_IN * sizeof(float);
    fill_values(values, TOKENS * N_IN, 8);
    float *table = device_upload(device, values, sizeof values);
    float *x = device_alloc(device, sizeof direct);
    void *page = x;
    moe_weight embeddings = {MOE_DTYPE_F32, table, N_IN, TOKENS, N_IN * sizeof(float), 0};
    int32_t tokens[MOST];
    moe_kv_row rows[MOST];
    moe_step_inputs inputs = {
        .tokens = tokens, .rows = rows, .cos = cos, .sin = sin, .n_rows = n_rows, .n_rot = N_IN};
    moe_rope rope = {.x = x,
                     .row_stride = N_IN,
                     .head_stride = N_IN,
                     .n_head = 1,
                     .n_rot = N_IN,
                     .cos = cos,
                     .sin = sin};
    bool was_played;
    for (uint32_t step = 0; step < STEPS; step++) {
        for (uint32_t r = 0; r < n_rows; r++) {
            tokens[r] = (int32_t)((step * 3 + r * 5) % TOKENS);
            rows[r] = moe_kv_row_at(&page, r);
        }
        fill_values(cos, n_rows * N_IN / 2, 10 + step);
        fill_values(sin, n_rows * N_IN / 2, 20 + step);
        assert_int_equal(ops->embed(device, &embeddings, tokens, n_rows, 2.0f, x, NULL), MOE_OK);
        assert_int_equal(ops->rope(device, &rope, n_rows, NULL), MOE_OK);
        assert_int_equal(ops->download(device, direct, x, bytes, NULL), MOE_OK);
        memset(played, 0, sizeof played);
        assert_int_equal(ops->upload(device, x, played, bytes, NULL), MOE_OK);
        assert_int_equal(ops->begin_step(device, &inputs, NULL), MOE_OK);
        assert_int_equal(recording->play(device, NUMBER, &was_played, NULL), MOE_OK);
        assert_int_equal(was_played, step > 0);
        if (step == 0) {
            assert_int_equal(recording->record(device, NUMBER, NULL), MOE_OK);
            int status = ops->embed(device, &embeddings, tokens, n_rows, 2.0f, x, NULL);
            assert_int_equal(status, MOE_OK);
            status = ops->rope(device, &rope, n_rows, NULL);
            assert_int_equal(recording->record_end(device, status, NULL), MOE_OK);
        }
        assert_int_equal(ops->begin_step(device, NULL, NULL), MOE_OK);
        assert_int_equal(ops->download(device, played, x, bytes, NULL), MOE_OK);
        assert_memory_equal(played, direct, bytes);
    }
    /* One that is given up leaves nothing to play, and none is made outside of steps. */
    assert_int_equal(recording->record(device, NUMBER, NULL), MOE_ERR_UNSUPPORTED);
    assert_int_equal(ops->begin_step(device, &inputs, NULL), MOE_OK);
    assert_int_equal(recording->play(device, NUMBER + 1, &was_played, NULL), MOE_OK);
    assert_false(was_played);
    assert_int_equal(recording->record(device, NUMBER, NULL), MOE_OK);
    assert_int_equal(recording->record_end(device, MOE_ERR_CANCELLED, NULL), MOE_ERR_CANCELLED);
    assert_int_equal(recording->play(device, NUMBER, &was_played, NULL), MOE_OK);
    assert_false(was_played);
    assert_int_equal(ops->begin_step(device, NULL, NULL), MOE_OK);
    ops->free(device, table, sizeof values);
    ops->free(device, x, sizeof direct);
}

/* Each number of rows has recordings of its own. */
static void check_recording(moe_device *device)
{
    if (device->recording != NULL) {
        assert_true(device->recording->max_rows >= 1 && device->recording->max_rows <= 8);
        for (uint32_t n_rows = 1; n_rows <= device->recording->max_rows; n_rows++) {
            check_recording_of(device, n_rows);
        }
    }
}

static void recordings(void **state)
{
    (void)state;
    for_every_device(check_recording);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory),          cmocka_unit_test(rows_of_the_host),
        cmocka_unit_test(same_arithmetic), cmocka_unit_test(rows_used_again),
        cmocka_unit_test(dropped_ranks),   cmocka_unit_test(greatest),
        cmocka_unit_test(copies),          cmocka_unit_test(recordings),
        cmocka_unit_test(gates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
