/* SPDX-License-Identifier: MIT */
/* Several residual streams, on every device that has them: what is read is the weighted sum, by
 * weights that a double computation gives, too; what is written is each stream plus its share of
 * the branch; a row's bits are those of the first device and do not depend on its neighbours. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "device_fixture.h"

#define ROWS      7u
#define N         2100u /* more than two blocks of columns */
#define STREAMS   5u
#define WEIGHTS   (2 * STREAMS)
#define EPS       1e-3f
#define MAGNITUDE 1.75f

typedef struct streams {
    float x[ROWS][STREAMS][N];
    float weights[ROWS][WEIGHTS]; /* products, then weights */
    float read[ROWS][N];
    float written[ROWS][STREAMS][N];
} streams;

static float base[WEIGHTS], scale[2], branch[ROWS][N];
static streams input, first_result, result;

static void fill_inputs(void)
{
    fill_values(&input.x[0][0][0], sizeof input.x / sizeof(float), 1);
    fill_values(&input.weights[0][0], ROWS * WEIGHTS, 2);
    fill_values(base, WEIGHTS, 3);
    fill_values(scale, 2, 4);
    fill_values(&branch[0][0], ROWS * N, 5);
    for (uint32_t i = 0; i < ROWS * WEIGHTS; i++) {
        (&input.weights[0][0])[i] *= 12.0f;
    }
}

/* Rows first .. first + n - 1, into `to`. */
static void run_rows(moe_device *device, uint32_t first, uint32_t n, streams *to)
{
    const moe_device_ops *ops = device->ops;
    float *x = device_upload(device, input.x[first], n * sizeof input.x[0]);
    float *weights = device_upload(device, input.weights[first], n * sizeof input.weights[0]);
    float *device_base = device_upload(device, base, sizeof base);
    float *device_scale = device_upload(device, scale, sizeof scale);
    float *device_branch = device_upload(device, branch[first], n * sizeof branch[0]);
    float *y = device_alloc(device, n * sizeof branch[0]);
    const moe_stream_read read = {x,           STREAMS,      N,   weights,   WEIGHTS,
                                  device_base, device_scale, EPS, MAGNITUDE, y};
    const moe_stream_write write = {x, STREAMS, N, device_branch, weights + STREAMS, WEIGHTS};
    assert_int_equal(ops->stream_read(device, &read, n, NULL), MOE_OK);
    assert_int_equal(ops->download(device, to->read[first], y, n * sizeof branch[0], NULL), MOE_OK);
    assert_int_equal(
        ops->download(device, to->weights[first], weights, n * sizeof input.weights[0], NULL),
        MOE_OK);
    assert_int_equal(ops->download(device, to->x[first], x, n * sizeof input.x[0], NULL), MOE_OK);
    assert_int_equal(ops->stream_write(device, &write, n, NULL), MOE_OK);
    assert_int_equal(ops->download(device, to->written[first], x, n * sizeof input.x[0], NULL),
                     MOE_OK);
    ops->free(device, x, n * sizeof input.x[0]);
    ops->free(device, weights, n * sizeof input.weights[0]);
    ops->free(device, device_base, sizeof base);
    ops->free(device, device_scale, sizeof scale);
    ops->free(device, device_branch, n * sizeof branch[0]);
    ops->free(device, y, n * sizeof branch[0]);
}

static void check_near(float got, double expected)
{
    assert_true(fabs(got - expected) <= 1e-5 * (1 + fabs(expected)));
}

static void check_values(const streams *got)
{
    for (uint32_t r = 0; r < ROWS; r++) {
        double w[WEIGHTS];
        for (uint32_t i = 0; i < WEIGHTS; i++) {
            double product = (double)input.weights[r][i] * scale[i / STREAMS] + base[i];
            w[i] = (i < STREAMS ? 1.0 : (double)MAGNITUDE) / (1 + exp(-product)) + (double)EPS;
            check_near(got->weights[r][i], w[i]);
        }
        for (uint32_t c = 0; c < N; c++) {
            double sum = 0;
            for (uint32_t s = 0; s < STREAMS; s++) {
                sum += w[s] * input.x[r][s][c];
                check_near(got->written[r][s][c], input.x[r][s][c] + w[STREAMS + s] * branch[r][c]);
            }
            check_near(got->read[r][c], sum);
        }
    }
    assert_memory_equal(got->x, input.x, sizeof input.x); /* reading changes no stream */
}

static void test_devices(void **state)
{
    (void)state;
    fill_inputs();
    for (size_t i = 0; device_spec_at(i) != NULL; i++) {
        device_fixture fixture;
        streams *to = i == 0 ? &first_result : &result;
        open_device(&fixture, device_spec_at(i));
        if ((fixture.device->forms & MOE_FORM_BIT(MOE_FORM_STREAMS)) != 0) {
            run_rows(fixture.device, 0, ROWS, to);
            check_values(to);
            assert_memory_equal(to, &first_result, sizeof *to);
            memset(&result, 0, sizeof result);
            for (uint32_t r = 0; r < ROWS; r++) {
                run_rows(fixture.device, r, 1, &result);
            }
            assert_memory_equal(&result, &first_result, sizeof result);
        }
        close_device(&fixture);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_devices)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
