/* SPDX-License-Identifier: MIT */
/* What every device must do. Results are held against the first device, the CPU, bit by bit. */
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

static void for_every_device(void (*check)(moe_device *device))
{
    for (size_t i = 0; device_spec_at(i) != NULL; i++) {
        device_fixture fixture;
        open_device(&fixture, device_spec_at(i));
        check(fixture.device);
        close_device(&fixture);
    }
}

static void *device_alloc(moe_device *device, size_t bytes)
{
    moe_error err = {""};
    void *memory;
    if (device->ops->alloc(device, bytes, &memory, &err) != MOE_OK) {
        fail_msg("%s", err.message);
    }
    return memory;
}

static void fill(float *values, size_t n, uint32_t seed)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        values[i] = (float)(seed >> 8) / (float)(1 << 24) - 0.5f;
    }
}

static void *upload_new(moe_device *device, const void *src, size_t bytes)
{
    void *memory = device_alloc(device, bytes);
    assert_int_equal(device->ops->upload(device, memory, src, bytes, NULL), MOE_OK);
    return memory;
}

static void check_memory(moe_device *device)
{
    const moe_device_ops *ops = device->ops;
    enum { BYTES = 100000 };
    uint8_t *bytes = malloc(BYTES);
    uint8_t *back = calloc(BYTES, 1);
    for (size_t i = 0; i < BYTES; i++) {
        bytes[i] = (uint8_t)(i * 31 + i / 256);
    }
    uint8_t *a = upload_new(device, bytes, BYTES);
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

/* One expert over some rows, and their weighted sum. */
static void run_expert(moe_device *device, float *result)
{
    const moe_device_ops *ops = device->ops;
    moe_device_limits limits = {
        .linear = {N_ROWS, N_IN}, .ff = {{N_ROWS, N_FF}}, .max_v_dim = N_IN, .max_head_group = 1};
    float x[N_ROWS * N_IN], weights[3][N_FF * N_IN];
    float mix[N_ROWS];
    fill(x, N_ROWS * N_IN, 1);
    fill(mix, N_ROWS, 2);
    assert_true(ops->scratch_need(device, &limits) > 0);
    assert_int_equal(ops->reserve(device, &limits, NULL), MOE_OK);
    void *matrices[3];
    for (int i = 0; i < 3; i++) {
        fill(weights[i], N_FF * N_IN, 3 + (uint32_t)i);
        matrices[i] = upload_new(device, weights[i], sizeof weights[i]);
    }
    moe_weight in = {MOE_DTYPE_F32, matrices[0], N_IN, N_FF, N_IN * sizeof(float)};
    moe_weight up = {MOE_DTYPE_F32, matrices[1], N_IN, N_FF, N_IN * sizeof(float)};
    moe_weight down = {MOE_DTYPE_F32, matrices[2], N_FF, N_IN, N_FF * sizeof(float)};
    moe_expert_work work = {.gate = in, .up = up, .down = down, .n_rows = N_ROWS};
    float *device_x = upload_new(device, x, sizeof x);
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

#define N_COPIES   MOE_MAX_COPIES
#define COPY_BYTES 50000u

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
    fill(host, N_COPIES * COPY_BYTES / sizeof(float), 9);
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
    free(back);
    device->ops->free(device, target, N_COPIES * COPY_BYTES);
    link->host_free(device, host, N_COPIES * COPY_BYTES);
}

static void copies(void **state)
{
    (void)state;
    for_every_device(check_copies);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory),
        cmocka_unit_test(same_arithmetic),
        cmocka_unit_test(copies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
