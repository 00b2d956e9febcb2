/* SPDX-License-Identifier: MIT */
/* The device's clock, on the emulated runtime: it tells what the kernels took, not what queueing
 * them took, piece by piece in order, and does without where it has to. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cuda/cuda_internal.h"
#include "fake_runtime.h"
#include "runtime/base/clock.h"

#define KERNEL_US 2000u

const moe_cuda_module *moe_cuda_module_entry(void);

static moe_device *open_slow_device(void)
{
    fake_machine machine;
    moe_device *device = NULL;
    fake_machine_init(&machine);
    machine.kernel_us = KERNEL_US;
    fake_machine_set(&machine);
    assert_int_equal(moe_cuda_module_entry()->open(&device, &(moe_cuda_device_options){0}, NULL),
                     MOE_OK);
    assert_non_null(device->clock);
    return device;
}

static void close_all(moe_device *device, float *x)
{
    fake_usage usage;
    device->ops->free(device, x, sizeof *x);
    device->ops->close(device);
    fake_get_usage(&usage);
    assert_int_equal(usage.device_blocks + usage.events + usage.streams, 0);
}

static float *one_number(moe_device *device)
{
    void *x;
    float value = 1.0f;
    assert_int_equal(device->ops->alloc(device, sizeof value, &x, NULL), MOE_OK);
    assert_int_equal(device->ops->upload(device, x, &value, sizeof value, NULL), MOE_OK);
    assert_int_equal(device->ops->sync(device, NULL), MOE_OK);
    return x;
}

/* One piece of work: so many kernels. */
static void time_kernels(moe_device *device, float *x, uint32_t n)
{
    device->clock->begin(device);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(device->ops->scale(device, 2.0f, x, 1, NULL), MOE_OK);
    }
    device->clock->end(device, &(moe_timed_work){n, 10 * n});
}

static void times_of_kernels(void **state)
{
    (void)state;
    moe_device *device = open_slow_device();
    float *x = one_number(device);
    moe_timed_work work;
    uint64_t ns;
    assert_false(device->clock->take(device, &work, &ns));
    uint64_t begin = moe_now_ns();
    for (uint32_t n = 1; n <= 3; n++) {
        time_kernels(device, x, n);
        assert_int_equal(device->ops->scale(device, 2.0f, x, 1, NULL), MOE_OK); /* not timed */
    }
    assert_int_equal(device->ops->sync(device, NULL), MOE_OK);
    uint64_t whole = moe_now_ns() - begin, sum = 0;
    for (uint32_t n = 1; n <= 3; n++) {
        assert_true(device->clock->take(device, &work, &ns));
        assert_int_equal(work.n_experts, n);
        assert_int_equal(work.n_rows, 10 * n);
        assert_true(ns >= n * KERNEL_US * 1000ull);
        sum += ns;
    }
    assert_true(sum <= whole - 3 * KERNEL_US * 1000ull);
    assert_false(device->clock->take(device, &work, &ns));
    close_all(device, x);
}

static void work_that_is_not_done(void **state)
{
    (void)state;
    moe_device *device = open_slow_device();
    float *x = one_number(device);
    moe_timed_work work;
    uint64_t ns;
    uint32_t n_taken = 0;
    uint64_t begin = moe_now_ns();
    time_kernels(device, x, 50);
    bool taken = device->clock->take(device, &work, &ns);
    assert_true(!taken || moe_now_ns() - begin >= 50 * KERNEL_US * 1000ull);
    n_taken += taken;
    /* More pieces than it has room for: the last ones are not timed. */
    for (uint32_t i = 0; i < 2 * MOE_CUDA_TIMINGS; i++) {
        time_kernels(device, x, 1);
    }
    assert_int_equal(device->ops->sync(device, NULL), MOE_OK);
    while (device->clock->take(device, &work, &ns)) {
        n_taken++;
    }
    assert_in_range(n_taken, MOE_CUDA_TIMINGS, MOE_CUDA_TIMINGS + 1);
    time_kernels(device, x, 1);
    assert_int_equal(device->ops->sync(device, NULL), MOE_OK);
    assert_true(device->clock->take(device, &work, &ns));
    /* An end without a beginning. */
    device->clock->end(device, &work);
    assert_false(device->clock->take(device, &work, &ns));
    close_all(device, x);
}

/* What the clock cannot have costs the time alone. */
static void refused_events(void **state)
{
    (void)state;
    static const char *const calls[] = {"cudaEventCreateWithFlags", "cudaEventRecord",
                                        "cudaEventElapsedTime"};
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        moe_device *device = open_slow_device();
        float *x = one_number(device);
        fake_machine machine;
        fake_machine_init(&machine);
        machine.fail_call = calls[i];
        machine.fail_code = cudaErrorMemoryAllocation;
        fake_machine_set(&machine);
        moe_timed_work work;
        uint64_t ns;
        time_kernels(device, x, 1);
        assert_int_equal(device->ops->sync(device, NULL), MOE_OK);
        assert_false(device->clock->take(device, &work, &ns));
        time_kernels(device, x, 2);
        assert_int_equal(device->ops->sync(device, NULL), MOE_OK);
        assert_true(device->clock->take(device, &work, &ns));
        assert_int_equal(work.n_experts, 2);
        close_all(device, x);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(times_of_kernels),
        cmocka_unit_test(work_that_is_not_done),
        cmocka_unit_test(refused_events),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
