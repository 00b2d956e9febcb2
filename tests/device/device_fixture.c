/* SPDX-License-Identifier: MIT */
#include "device_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "cpu/cpu_device.h"
#include "cpu/kernels/cpu_features.h"
#include "runtime/device/sim_device.h"

void open_device(device_fixture *fixture, const char *spec)
{
    moe_error err = {""};
    *fixture = (device_fixture){0};
    assert_int_equal(moe_team_create(&fixture->team, 2, &err), MOE_OK);
    moe_cpu_device_options options = {.team = fixture->team};
    options.cpu_features = moe_cpu_features();
    assert_int_equal(moe_cpu_device_open(&fixture->device, &options, &err), MOE_OK);
    if (moe_sim_spec_is(spec)) {
        moe_sim_spec parsed;
        if (moe_sim_spec_parse(&parsed, spec, &err) != MOE_OK ||
            moe_sim_device_open(&fixture->device, &parsed, fixture->device, &err) != MOE_OK) {
            fail_msg("%s", err.message);
        }
    } else if (strcmp(spec, "cpu") != 0) {
        fixture->device->ops->close(fixture->device);
        if (open_other_device(&fixture->device, spec, &err) != MOE_OK) {
            fail_msg("%s", err.message);
        }
    }
}

void close_device(device_fixture *fixture)
{
    fixture->device->ops->close(fixture->device);
    moe_team_destroy(&fixture->team);
}

void for_every_device(void (*check)(moe_device *device))
{
    for (size_t i = 0; device_spec_at(i) != NULL; i++) {
        device_fixture fixture;
        open_device(&fixture, device_spec_at(i));
        check(fixture.device);
        close_device(&fixture);
    }
}

void *device_alloc(moe_device *device, size_t bytes)
{
    moe_error err = {""};
    void *memory;
    if (device->ops->alloc(device, bytes, &memory, &err) != MOE_OK) {
        fail_msg("%s", err.message);
    }
    return memory;
}

void fill_values(float *values, size_t n, uint32_t seed)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        values[i] = (float)(seed >> 8) / (float)(1 << 24) - 0.5f;
    }
}

void *device_upload(moe_device *device, const void *src, size_t bytes)
{
    void *memory = device_alloc(device, bytes);
    assert_int_equal(device->ops->upload(device, memory, src, bytes, NULL), MOE_OK);
    return memory;
}
