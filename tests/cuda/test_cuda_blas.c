/* SPDX-License-Identifier: MIT */
/* Linear maps of a CUDA device that hands float weights to cuBLAS, on the stand-ins for it and for
 * the runtime: which products go there, and that they are the products asked for. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cpu/kernels/kv_half.h"
#include "cuda/cuda_blas.h"
#include "cuda/cuda_internal.h"
#include "emulation/fake_runtime.h"

/* More rows than the scratch of widened weights holds at once (2048 of this length). */
#define N_IN      4096u
#define N_OUT     2100u
#define N_ROWS    MOE_CUDA_BLAS_ROWS
#define SMALL_IN  40u
#define SMALL_OUT 24u

static moe_device *device;
static uint32_t seed = 1;

static float next_value(void)
{
    seed = seed * 1664525u + 1013904223u;
    return (float)(seed >> 16) * 0x1p-16f - 0.5f;
}

static void *upload(const void *data, size_t bytes)
{
    void *memory;
    assert_int_equal(device->ops->alloc(device, bytes, &memory, NULL), MOE_OK);
    assert_int_equal(device->ops->upload(device, memory, data, bytes, NULL), MOE_OK);
    return memory;
}

static float *upload_values(size_t n)
{
    float *values = malloc(n * sizeof *values);
    for (size_t i = 0; i < n; i++) {
        values[i] = next_value();
    }
    float *memory = upload(values, n * sizeof *values);
    free(values);
    return memory;
}

static moe_weight make_weight(moe_dtype type, uint32_t n_in, uint32_t n_out)
{
    size_t n = (size_t)n_in * n_out;
    size_t bytes = n * (type == MOE_DTYPE_F32 ? 4 : 2);
    uint8_t *data = malloc(bytes);
    for (size_t i = 0; i < n; i++) {
        float value = next_value();
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        uint16_t half = type == MOE_DTYPE_F16 ? moe_float_to_half(value) : (uint16_t)(bits >> 16);
        if (type == MOE_DTYPE_F32) {
            memcpy(data + 4 * i, &value, sizeof value);
        } else {
            memcpy(data + 2 * i, &half, sizeof half);
        }
    }
    moe_weight weight = {type, upload(data, bytes), n_in, n_out, bytes / n_out, 0};
    free(data);
    return weight;
}

static uint64_t n_products(void)
{
    fake_usage usage;
    fake_get_usage(&usage);
    return usage.n_products;
}

/* Rows of a linear map, all at once or one by one; freed by the caller. */
static float *run(const moe_weight *weight, const float *bias, const float *x, uint32_t n_rows,
                  bool one_by_one)
{
    size_t bytes = (size_t)n_rows * weight->n_out * sizeof(float);
    void *out;
    assert_int_equal(device->ops->alloc(device, bytes, &out, NULL), MOE_OK);
    uint32_t n = one_by_one ? 1 : n_rows;
    for (uint32_t r = 0; r < n_rows; r += n) {
        moe_linear linear = {*weight, bias, (float *)out + (size_t)r * weight->n_out};
        assert_int_equal(device->ops->linear(device, x + (size_t)r * weight->n_in, n, weight->n_in,
                                             &linear, 1, NULL),
                         MOE_OK);
    }
    float *back = malloc(bytes);
    assert_int_equal(device->ops->download(device, back, out, bytes, NULL), MOE_OK);
    device->ops->free(device, out, bytes);
    return back;
}

static void check(moe_dtype type, bool with_bias)
{
    const uint32_t n_in = SMALL_IN, n_out = SMALL_OUT;
    moe_weight weight = make_weight(type, n_in, n_out);
    float *x = upload_values((size_t)N_ROWS * n_in);
    float *bias = with_bias ? upload_values(n_out) : NULL;
    uint64_t before = n_products();
    float *exact = run(&weight, bias, x, N_ROWS, true);
    float *few = run(&weight, bias, x, N_ROWS - 1, false);
    assert_int_equal(n_products(), before);
    assert_memory_equal(few, exact, (size_t)(N_ROWS - 1) * n_out * sizeof(float));
    float *got = run(&weight, bias, x, N_ROWS, false);
    assert_int_equal(n_products(), before + 1);
    uint32_t n_other = 0;
    for (size_t i = 0; i < (size_t)N_ROWS * n_out; i++) {
        assert_true(fabsf(got[i] - exact[i]) <= 2e-5f * sqrtf((float)n_in));
        n_other += got[i] != exact[i];
    }
    assert_true(n_other > 0);
    free(exact);
    free(few);
    free(got);
    device->ops->free(device, x, 0);
    device->ops->free(device, bias, 0);
    device->ops->free(device, (void *)weight.data, 0);
}

static void linear_maps(void **state)
{
    (void)state;
    static const moe_dtype types[] = {MOE_DTYPE_F32, MOE_DTYPE_F16, MOE_DTYPE_BF16};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        check(types[i], false);
        check(types[i], true);
    }
}

/* A weight of ones in BF16 whose rows are more than are widened at once: sums of x, plus the bias.
 */
static void parts(void **state)
{
    (void)state;
    size_t n = (size_t)N_IN * N_OUT;
    uint16_t *ones = malloc(n * sizeof *ones);
    float *x = malloc(N_ROWS * N_IN * sizeof *x);
    float bias[N_OUT];
    double sums[N_ROWS] = {0};
    for (size_t i = 0; i < n; i++) {
        ones[i] = 0x3f80;
    }
    for (uint32_t i = 0; i < N_ROWS * N_IN; i++) {
        x[i] = next_value();
        sums[i / N_IN] += (double)x[i];
    }
    for (uint32_t o = 0; o < N_OUT; o++) {
        bias[o] = next_value();
    }
    moe_weight weight = {MOE_DTYPE_BF16, upload(ones, n * sizeof *ones), N_IN, N_OUT, 2 * N_IN, 0};
    float *device_x = upload(x, N_ROWS * N_IN * sizeof *x);
    float *device_bias = upload(bias, sizeof bias);
    uint64_t before = n_products();
    float *got = run(&weight, device_bias, device_x, N_ROWS, false);
    assert_int_equal(n_products(), before + 2);
    for (uint32_t i = 0; i < N_ROWS * N_OUT; i++) {
        assert_true(fabs(got[i] - (sums[i / N_OUT] + (double)bias[i % N_OUT])) <= 1e-4);
    }
    free(ones);
    free(x);
    free(got);
    device->ops->free(device, device_x, 0);
    device->ops->free(device, device_bias, 0);
    device->ops->free(device, (void *)weight.data, 0);
}

/* A network that all rows pass through goes there whole, an expert with a list of rows does not. */
static void networks(void **state)
{
    (void)state;
    uint32_t all[N_ROWS];
    moe_weight gate = make_weight(MOE_DTYPE_F16, SMALL_IN, SMALL_OUT);
    moe_weight up = make_weight(MOE_DTYPE_F32, SMALL_IN, SMALL_OUT);
    moe_weight down = make_weight(MOE_DTYPE_BF16, SMALL_OUT, SMALL_IN);
    float *x = upload_values(N_ROWS * SMALL_IN);
    float results[2][N_ROWS * SMALL_IN];
    for (uint32_t r = 0; r < N_ROWS; r++) {
        all[r] = r;
    }
    for (int listed = 0; listed <= 1; listed++) {
        moe_expert_work work = {.gate = gate, .up = up, .down = down, .n_rows = N_ROWS};
        work.x_index = listed ? all : NULL;
        work.out_index = listed ? all : NULL;
        uint64_t before = n_products();
        void *out;
        assert_int_equal(device->ops->alloc(device, sizeof results[0], &out, NULL), MOE_OK);
        assert_int_equal(
            device->ops->experts(device, x, N_ROWS, SMALL_IN, &work, 1, out, SMALL_IN, NULL),
            MOE_OK);
        assert_int_equal(
            device->ops->download(device, results[listed], out, sizeof results[0], NULL), MOE_OK);
        assert_int_equal(n_products(), before + (listed ? 0 : 3));
        device->ops->free(device, out, sizeof results[0]);
    }
    for (uint32_t i = 0; i < N_ROWS * SMALL_IN; i++) {
        assert_true(fabsf(results[0][i] - results[1][i]) <= 1e-5f);
    }
    assert_memory_not_equal(results[0], results[1], sizeof results[0]);
    device->ops->free(device, x, 0);
    device->ops->free(device, (void *)gate.data, 0);
    device->ops->free(device, (void *)up.data, 0);
    device->ops->free(device, (void *)down.data, 0);
}

/* The cuBLAS of a newer CUDA than the driver knows opens nothing; the one behind it is tried. */
static void older_library(void **state)
{
    (void)state;
    for (int each = 0; each <= 1; each++) {
        fake_machine machine;
        moe_error err = {""};
        moe_device *other = NULL;
        fake_machine_init(&machine);
        machine.fail_call = "cublasCreate";
        machine.fail_code = cudaErrorInsufficientDriver;
        machine.fail_each = each;
        fake_machine_set(&machine);
        moe_cuda_device_options options = {.blas_prefill = true};
        assert_int_equal(moe_cuda_device_open(&other, &options, &err),
                         each ? MOE_ERR_DEVICE : MOE_OK);
        assert_true(!each || strstr(err.message, "the library and the driver may not fit") != NULL);
        fake_usage usage;
        fake_get_usage(&usage);
        assert_int_equal(usage.n_failures, each ? 2 : 1);
        assert_int_equal(usage.blas_handles, each ? 0 : 1);
        if (other != NULL) {
            other->ops->close(other);
        }
    }
}

static int open_with_blas(void **state)
{
    (void)state;
    fake_machine machine;
    fake_machine_init(&machine);
    machine.nap_us = 50;
    fake_machine_set(&machine);
    moe_cuda_device_options options = {.blas_prefill = true};
    moe_device_limits limits = {.linear = {N_ROWS, N_IN}, .ff = {{N_ROWS, SMALL_OUT}}};
    return moe_cuda_device_open(&device, &options, NULL) != MOE_OK ||
           device->ops->reserve(device, &limits, NULL) != MOE_OK;
}

static int close_all(void **state)
{
    (void)state;
    fake_usage usage;
    device->ops->close(device);
    fake_get_usage(&usage);
    return usage.device_blocks + usage.host_blocks + usage.blas_handles != 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_maps),
        cmocka_unit_test(parts),
        cmocka_unit_test(networks),
    };
    const struct CMUnitTest without_device[] = {cmocka_unit_test(older_library)};
    return cmocka_run_group_tests(tests, open_with_blas, close_all) +
           cmocka_run_group_tests(without_device, NULL, NULL);
}
