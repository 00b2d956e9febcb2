/* SPDX-License-Identifier: MIT */
/* Several residual streams, on every device that has them: what is read is the weighted sum, by
 * weights that a double computation gives, too; what is written is each stream, or what is mixed of
 * them, plus its share of the branch; a row's bits are those of the first device and do not depend
 * on its neighbours. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "device_fixture.h"

#define ROWS      7u
#define N         2100u /* more than two blocks of columns */
#define STREAMS   5u
#define WEIGHTS   (2 * STREAMS + STREAMS * STREAMS)
#define MIXINGS   3u
#define EPS       1e-3f
#define MAGNITUDE 1.75f

typedef struct streams {
    float x[ROWS][STREAMS][N];
    float weights[ROWS][WEIGHTS]; /* products, then weights */
    float read[ROWS][N];
    float written[ROWS][STREAMS][N];
} streams;

static float base[WEIGHTS], scale[3], branch[ROWS][N];
static streams input, first_result[2], result;

static void fill_inputs(void)
{
    fill_values(&input.x[0][0][0], sizeof input.x / sizeof(float), 1);
    fill_values(&input.weights[0][0], ROWS * WEIGHTS, 2);
    fill_values(base, WEIGHTS, 3);
    fill_values(scale, 3, 4);
    fill_values(&branch[0][0], ROWS * N, 5);
    for (uint32_t i = 0; i < ROWS * WEIGHTS; i++) {
        (&input.weights[0][0])[i] *= 12.0f;
    }
}

/* Rows first .. first + n - 1, into `to`. */
static void run_rows(moe_device *device, bool mixed, uint32_t first, uint32_t n, streams *to)
{
    const moe_device_ops *ops = device->ops;
    float *x = device_upload(device, input.x[first], n * sizeof input.x[0]);
    float *weights = device_upload(device, input.weights[first], n * sizeof input.weights[0]);
    float *device_base = device_upload(device, base, sizeof base);
    float *device_scale = device_upload(device, scale, sizeof scale);
    float *device_branch = device_upload(device, branch[first], n * sizeof branch[0]);
    float *y = device_alloc(device, n * sizeof branch[0]);
    const moe_stream_read read = {.x = x,
                                  .n_streams = STREAMS,
                                  .n = N,
                                  .weights = weights,
                                  .n_weights = WEIGHTS,
                                  .base = device_base,
                                  .scale = device_scale,
                                  .eps = EPS,
                                  .magnitude = MAGNITUDE,
                                  .write_eps = mixed ? 0 : EPS,
                                  .mixings = mixed ? MIXINGS : 0,
                                  .y = y};
    const moe_stream_write write = {.x = x,
                                    .n_streams = STREAMS,
                                    .n = N,
                                    .branch = device_branch,
                                    .weights = weights + STREAMS,
                                    .weights_stride = WEIGHTS,
                                    .mixes = mixed};
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

/* Of one row, [from][to], from its products. */
static void mix_in_double(const float *products, double w[STREAMS][STREAMS])
{
    for (uint32_t i = 0; i < STREAMS; i++) {
        double sum = 0;
        for (uint32_t k = 0; k < STREAMS; k++) {
            w[i][k] = exp((double)products[i * STREAMS + k] * scale[2] +
                          base[2 * STREAMS + i * STREAMS + k]);
            sum += w[i][k];
        }
        for (uint32_t k = 0; k < STREAMS; k++) {
            w[i][k] = w[i][k] / sum + (double)EPS;
        }
    }
    for (uint32_t m = 0; m < 2 * MIXINGS - 1; m++) { /* columns, rows, columns .. */
        for (uint32_t i = 0; i < STREAMS; i++) {
            double sum = (double)EPS;
            for (uint32_t k = 0; k < STREAMS; k++) {
                sum += m % 2 == 0 ? w[k][i] : w[i][k];
            }
            for (uint32_t k = 0; k < STREAMS; k++) {
                *(m % 2 == 0 ? &w[k][i] : &w[i][k]) /= sum;
            }
        }
    }
}

static void check_row(const streams *got, bool mixed, uint32_t r)
{
    double w[2 * STREAMS], mixing[STREAMS][STREAMS] = {{0}};
    for (uint32_t i = 0; i < 2 * STREAMS; i++) {
        double product = (double)input.weights[r][i] * scale[i / STREAMS] + base[i];
        double s = 1 / (1 + exp(-product));
        w[i] = i < STREAMS ? s + (double)EPS : (double)MAGNITUDE * s + (mixed ? 0 : (double)EPS);
        check_near(got->weights[r][i], w[i]);
    }
    if (mixed) {
        mix_in_double(input.weights[r] + 2 * STREAMS, mixing);
    }
    for (uint32_t i = 0; i < STREAMS; i++) {
        mixing[i][i] = mixed ? mixing[i][i] : 1;
    }
    for (uint32_t c = 0; c < N; c++) {
        double sum = 0;
        for (uint32_t s = 0; s < STREAMS; s++) {
            double written = w[STREAMS + s] * branch[r][c];
            for (uint32_t from = 0; from < STREAMS; from++) {
                written += mixing[from][s] * input.x[r][from][c];
            }
            sum += w[s] * input.x[r][s][c];
            check_near(got->written[r][s][c], written);
        }
        check_near(got->read[r][c], sum);
    }
}

static void check_device(moe_device *device, bool mixed, bool first)
{
    streams *to = first ? &first_result[mixed] : &result;
    run_rows(device, mixed, 0, ROWS, to);
    for (uint32_t r = 0; r < ROWS; r++) {
        check_row(to, mixed, r);
    }
    assert_memory_equal(to->x, input.x, sizeof input.x); /* reading changes no stream */
    assert_memory_equal(to, &first_result[mixed], sizeof *to);
    memset(&result, 0, sizeof result);
    for (uint32_t r = 0; r < ROWS; r++) {
        run_rows(device, mixed, r, 1, &result);
    }
    assert_memory_equal(&result, &first_result[mixed], sizeof result);
}

static void test_devices(void **state)
{
    (void)state;
    fill_inputs();
    for (size_t i = 0; device_spec_at(i) != NULL; i++) {
        device_fixture fixture;
        open_device(&fixture, device_spec_at(i));
        if ((fixture.device->forms & MOE_FORM_BIT(MOE_FORM_STREAMS)) != 0) {
            check_device(fixture.device, false, i == 0);
            check_device(fixture.device, true, i == 0);
        }
        close_device(&fixture);
    }
}

/* ---- Gates of elements ---- */

typedef struct gated {
    float gates[ROWS][STREAMS][N], keys[ROWS][STREAMS][N];
    float weights[ROWS][STREAMS], read[ROWS][N];
} gated;

static gated gated_input, gated_first, gated_result;

static void run_gated(moe_device *device, uint32_t first, uint32_t n, gated *to)
{
    const moe_device_ops *ops = device->ops;
    float *x = device_upload(device, input.x[first], n * sizeof input.x[0]);
    float *gates = device_upload(device, gated_input.gates[first], n * sizeof to->gates[0]);
    float *keys = device_upload(device, gated_input.keys[first], n * sizeof to->keys[0]);
    float *weights = device_upload(device, gated_input.weights[first], n * sizeof to->weights[0]);
    float *values = device_upload(device, branch[first], n * sizeof branch[0]);
    float *y = device_alloc(device, n * sizeof branch[0]);
    const moe_stream_read read = {.x = x,
                                  .n_streams = STREAMS,
                                  .n = N,
                                  .weights = weights,
                                  .n_weights = STREAMS,
                                  .magnitude = MAGNITUDE,
                                  .gates = gates,
                                  .y = y};
    const moe_stream_match match = {keys, x, values, STREAMS, N};
    assert_int_equal(ops->stream_read(device, &read, n, NULL), MOE_OK);
    assert_int_equal(ops->stream_match(device, &match, n, NULL), MOE_OK);
    assert_int_equal(ops->download(device, to->read[first], y, n * sizeof to->read[0], NULL),
                     MOE_OK);
    assert_int_equal(
        ops->download(device, to->weights[first], weights, n * sizeof to->weights[0], NULL),
        MOE_OK);
    assert_int_equal(ops->download(device, to->keys[first], keys, n * sizeof to->keys[0], NULL),
                     MOE_OK);
    ops->free(device, x, n * sizeof input.x[0]);
    ops->free(device, gates, n * sizeof to->gates[0]);
    ops->free(device, keys, n * sizeof to->keys[0]);
    ops->free(device, weights, n * sizeof to->weights[0]);
    ops->free(device, values, n * sizeof branch[0]);
    ops->free(device, y, n * sizeof branch[0]);
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static void check_gated_row(const gated *r, uint32_t row)
{
    for (uint32_t c = 0; c < N; c++) {
        double sum = 0;
        for (uint32_t s = 0; s < STREAMS; s++) {
            sum += sigmoid((double)gated_input.gates[row][s][c]) * (double)input.x[row][s][c];
        }
        assert_float_equal(r->read[row][c], sum / STREAMS, 1e-5);
    }
    for (uint32_t s = 0; s < STREAMS; s++) {
        const double weight = sigmoid((double)gated_input.weights[row][s] / STREAMS);
        double match = 0;
        for (uint32_t c = 0; c < N; c++) {
            match += (double)gated_input.keys[row][s][c] * (double)input.x[row][s][c];
        }
        match /= sqrt(N);
        const double root = match == 0 ? 0 : copysign(sqrt(fmax(fabs(match), 1e-6)), match);
        assert_float_equal(r->weights[row][s], (double)MAGNITUDE * weight, 1e-5);
        for (uint32_t c = 0; c < N; c++) {
            assert_float_equal(r->keys[row][s][c], sigmoid(root) * (double)branch[row][c], 1e-4);
        }
    }
}

static void test_gates(void **state)
{
    (void)state;
    const uint64_t forms = MOE_FORM_BIT(MOE_FORM_STREAM_GATES) | MOE_FORM_BIT(MOE_FORM_NGRAMS);
    fill_inputs();
    fill_values(&gated_input.gates[0][0][0], ROWS * STREAMS * N, 6);
    fill_values(&gated_input.keys[0][0][0], ROWS * STREAMS * N, 7);
    fill_values(&gated_input.weights[0][0], ROWS * STREAMS, 8);
    memset(gated_input.keys[0][1], 0, sizeof gated_input.keys[0][1]); /* it matches nothing */
    for (size_t i = 0; device_spec_at(i) != NULL; i++) {
        device_fixture fixture;
        open_device(&fixture, device_spec_at(i));
        for (uint32_t r = 0; r < ROWS && (fixture.device->forms & forms) == forms; r++) {
            run_gated(fixture.device, r, 1, i == 0 ? &gated_first : &gated_result);
            check_gated_row(i == 0 ? &gated_first : &gated_result, r);
        }
        if ((fixture.device->forms & forms) == forms) {
            run_gated(fixture.device, 0, ROWS, &gated_result);
            assert_memory_equal(&gated_result, &gated_first, sizeof gated_result);
        }
        close_device(&fixture);
    }
}

/* ---- Attention to streams, and a stream that begins anew ---- */

#define RECALLED (STREAMS - 1)

typedef struct recalled {
    float weights[ROWS][STREAMS], read[ROWS][N];
    float added[ROWS][STREAMS][N], begun[ROWS][STREAMS][N];
} recalled;

static recalled recall_first, recall_result;
static float score[N];

static void run_recall(moe_device *device, uint32_t first, uint32_t n, recalled *to)
{
    const moe_device_ops *ops = device->ops;
    const size_t x_bytes = n * sizeof input.x[0], row_bytes = n * sizeof branch[0];
    float *x = device_upload(device, input.x[first], x_bytes);
    float *b = device_upload(device, branch[first], row_bytes);
    float *s = device_upload(device, score, sizeof score);
    float *weights = device_alloc(device, n * sizeof to->weights[0]);
    float *y = device_alloc(device, row_bytes);
    const moe_stream_read read = {.x = x,
                                  .n_streams = RECALLED,
                                  .n_stored = STREAMS,
                                  .n = N,
                                  .weights = weights,
                                  .n_weights = STREAMS,
                                  .score = s,
                                  .eps = EPS,
                                  .y = y};
    moe_stream_write write = {.x = x, .n_streams = STREAMS, .n = N, .branch = b};
    assert_int_equal(ops->stream_read(device, &read, n, NULL), MOE_OK);
    assert_int_equal(ops->download(device, to->read[first], y, row_bytes, NULL), MOE_OK);
    assert_int_equal(
        ops->download(device, to->weights[first], weights, n * sizeof to->weights[0], NULL),
        MOE_OK);
    assert_int_equal(ops->stream_write(device, &write, n, NULL), MOE_OK);
    assert_int_equal(ops->download(device, to->added[first], x, x_bytes, NULL), MOE_OK);
    write.begins = RECALLED;
    assert_int_equal(ops->stream_write(device, &write, n, NULL), MOE_OK);
    assert_int_equal(ops->download(device, to->begun[first], x, x_bytes, NULL), MOE_OK);
    ops->free(device, x, x_bytes);
    ops->free(device, b, row_bytes);
    ops->free(device, s, sizeof score);
    ops->free(device, weights, n * sizeof to->weights[0]);
    ops->free(device, y, row_bytes);
}

static void check_recall_row(const recalled *got, uint32_t row)
{
    double w[RECALLED], sum = 0;
    for (uint32_t s = 0; s < RECALLED; s++) {
        double square = 0, product = 0;
        for (uint32_t c = 0; c < N; c++) {
            const double x = (double)input.x[row][s][c];
            square += x * x;
            product += x * (double)score[c];
        }
        w[s] = exp(product / sqrt(square / N + (double)EPS));
        sum += w[s];
    }
    for (uint32_t c = 0; c < N; c++) {
        double y = 0;
        for (uint32_t s = 0; s < RECALLED; s++) {
            y += w[s] / sum * (double)input.x[row][s][c];
        }
        check_near(got->read[row][c], y);
        const float added = input.x[row][0][c] + branch[row][c];
        assert_true(got->added[row][0][c] == added && got->begun[row][RECALLED][c] == added);
        assert_true(got->begun[row][0][c] == branch[row][c]);
    }
    for (uint32_t s = 0; s < RECALLED; s++) {
        check_near(got->weights[row][s], w[s] / sum);
    }
    /* No other stream is touched. */
    assert_memory_equal(got->added[row][1], input.x[row][1], (STREAMS - 1) * N * sizeof(float));
    assert_memory_equal(got->begun[row][1], input.x[row][1], (RECALLED - 1) * N * sizeof(float));
}

static void test_recall(void **state)
{
    (void)state;
    fill_inputs();
    fill_values(score, N, 9);
    for (size_t i = 0; device_spec_at(i) != NULL; i++) {
        device_fixture fixture;
        open_device(&fixture, device_spec_at(i));
        if ((fixture.device->forms & MOE_FORM_BIT(MOE_FORM_STREAM_RECALL)) != 0) {
            for (uint32_t r = 0; r < ROWS; r++) {
                run_recall(fixture.device, r, 1, i == 0 ? &recall_first : &recall_result);
                check_recall_row(i == 0 ? &recall_first : &recall_result, r);
            }
            run_recall(fixture.device, 0, ROWS, &recall_result);
            for (uint32_t r = 0; r < ROWS; r++) { /* the last weight of a row is not written */
                recall_result.weights[r][RECALLED] = recall_first.weights[r][RECALLED] = 0;
            }
            assert_memory_equal(&recall_result, &recall_first, sizeof recall_result);
        }
        close_device(&fixture);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_devices),
                                       cmocka_unit_test(test_recall), cmocka_unit_test(test_gates)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
