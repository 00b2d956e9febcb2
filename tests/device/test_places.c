/* SPDX-License-Identifier: MIT */
/* Every place computes the same bits, from rows and to rows in the device's memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device_fixture.h"
#include "runtime/place/place.h"

#define N_IN      64u
#define N_FF      96u
#define N_ROWS    5u
#define N_USED    2u
#define N_EXPERTS 3u
#define N_OUT     (N_ROWS * N_USED)
#define BYTES     (N_FF * N_IN * sizeof(float))

/* Each row chose two of the experts. */
static const uint32_t rows[] = {0, 2, 4, 0, 1, 3, 4, 1, 2, 3};
static const uint32_t places_of[] = {1, 4, 8, 0, 3, 7, 9, 2, 5, 6};
static const uint32_t first[N_EXPERTS + 1] = {0, 3, 7, 10};

typedef struct fixture {
    moe_device *device;
    float *x, *out; /* device */
    float *weights[N_EXPERTS][3];
    void *on_device[N_EXPERTS][3];
    float results[N_OUT * N_IN];
} fixture;

static moe_weight weight_of(const void *data, bool is_down)
{
    uint32_t n_in = is_down ? N_FF : N_IN;
    return (moe_weight){MOE_DTYPE_F32, data, n_in, is_down ? N_IN : N_FF, n_in * sizeof(float), 0};
}

/* Begins the computing of all experts there. */
static void submit(fixture *f, moe_place *place, bool on_host)
{
    moe_expert_work works[N_EXPERTS];
    for (uint32_t e = 0; e < N_EXPERTS; e++) {
        const void *parts[3];
        for (int p = 0; p < 3; p++) {
            parts[p] = on_host ? (const void *)f->weights[e][p] : f->on_device[e][p];
        }
        works[e] = (moe_expert_work){.gate = weight_of(parts[0], false),
                                     .up = weight_of(parts[1], false),
                                     .down = weight_of(parts[2], true),
                                     .x_index = rows + first[e],
                                     .out_index = places_of + first[e],
                                     .n_rows = first[e + 1] - first[e]};
    }
    const moe_place_job job = {
        .x = f->x, .n_x_rows = N_ROWS, .works = works, .n_works = N_EXPERTS, .out = f->out};
    assert_int_equal(place->ops->submit(place, &job, NULL), MOE_OK);
    memset(works, 0xee, sizeof works);
}

static void clear(fixture *f)
{
    static const float nothing[N_OUT * N_IN];
    assert_int_equal(f->device->ops->upload(f->device, f->out, nothing, sizeof nothing, NULL),
                     MOE_OK);
}

static const float *download(fixture *f)
{
    assert_int_equal(
        f->device->ops->download(f->device, f->results, f->out, sizeof f->results, NULL), MOE_OK);
    return f->results;
}

static void open_fixture(fixture *f, moe_device *device)
{
    float x[N_ROWS * N_IN];
    moe_device_limits limits = {
        .linear = {N_ROWS, N_IN}, .ff = {{N_OUT, N_FF}}, .max_v_dim = N_IN, .max_head_group = 1};
    assert_int_equal(device->ops->reserve(device, &limits, NULL), MOE_OK);
    f->device = device;
    fill_values(x, N_ROWS * N_IN, 1);
    f->x = device_upload(device, x, sizeof x);
    f->out = device_alloc(device, sizeof f->results);
    for (uint32_t e = 0; e < N_EXPERTS; e++) {
        for (uint32_t p = 0; p < 3; p++) {
            f->weights[e][p] = malloc(BYTES);
            fill_values(f->weights[e][p], N_FF * N_IN, 2 + 3 * e + p);
            f->on_device[e][p] = device_upload(device, f->weights[e][p], BYTES);
        }
    }
}

static void close_fixture(fixture *f)
{
    const moe_device_ops *ops = f->device->ops;
    ops->free(f->device, f->x, N_ROWS * N_IN * sizeof(float));
    ops->free(f->device, f->out, sizeof f->results);
    for (uint32_t e = 0; e < N_EXPERTS; e++) {
        for (uint32_t p = 0; p < 3; p++) {
            ops->free(f->device, f->on_device[e][p], BYTES);
            free(f->weights[e][p]);
        }
    }
}

static void check_host(fixture *f, const float *expected, bool announces)
{
    moe_place *host;
    const moe_host_place_options options = {.shape = {N_IN, N_FF, N_EXPERTS, N_USED, N_ROWS},
                                            .n_threads = 2,
                                            .device = f->device,
                                            .announces = announces};
    assert_int_equal(moe_place_open_host(&host, &options, NULL), MOE_OK);
    assert_true(moe_place_cost_ns(&host->times, 2) == 0.0);
    for (int i = 0; i < 3; i++) {
        clear(f);
        assert_int_equal(moe_place_announce(host, f->x, N_ROWS, NULL), MOE_OK);
        assert_int_equal(f->device->ops->sync(f->device, NULL), MOE_OK);
        submit(f, host, true);
        assert_int_equal(moe_place_collect(host, MOE_OK, NULL), MOE_OK);
        assert_memory_equal(download(f), expected, sizeof f->results);
    }
    assert_true(moe_place_cost_ns(&host->times, 2) > 0.0);
    /* After an error elsewhere, what was begun ends and leaves nothing; and there is no job. */
    clear(f);
    submit(f, host, true);
    assert_int_equal(moe_place_collect(host, MOE_ERR_IO, NULL), MOE_ERR_IO);
    assert_int_equal(moe_place_collect(host, MOE_OK, NULL), MOE_OK);
    const float *left = download(f);
    for (uint32_t i = 0; i < N_OUT * N_IN; i++) {
        assert_true(left[i] == 0.0f);
    }
    moe_place_close(&host);
    assert_null(host);
}

static void check_places(moe_device *device)
{
    fixture f;
    moe_device_place own;
    float expected[N_OUT * N_IN];
    open_fixture(&f, device);
    moe_device_place_init(&own, device, N_IN, true);
    clear(&f);
    submit(&f, &own.base, false);
    assert_int_equal(moe_place_collect(&own.base, MOE_OK, NULL), MOE_OK);
    memcpy(expected, download(&f), sizeof expected);
    assert_true(device->clock != NULL || moe_place_cost_ns(&own.base.times, 3) > 0.0);
    if (device->link != NULL) {
        check_host(&f, expected, false);
        check_host(&f, expected, true);
    }
    close_fixture(&f);
}

static void same_bits_everywhere(void **state)
{
    (void)state;
    for_every_device(check_places);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_bits_everywhere)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
