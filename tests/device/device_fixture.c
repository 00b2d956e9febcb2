/* SPDX-License-Identifier: MIT */
#include "device_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

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
    assert_int_equal(moe_cpu_features_parse("native", &options.cpu_features), 0);
    assert_int_equal(moe_cpu_device_open(&fixture->device, &options, &err), MOE_OK);
    if (moe_sim_spec_is(spec)) {
        moe_sim_spec parsed;
        if (moe_sim_spec_parse(&parsed, spec, &err) != MOE_OK ||
            moe_sim_device_open(&fixture->device, &parsed, fixture->device, &err) != MOE_OK) {
            fail_msg("%s", err.message);
        }
    }
}

void close_device(device_fixture *fixture)
{
    fixture->device->ops->close(fixture->device);
    moe_team_destroy(&fixture->team);
}

const char *device_spec_at(size_t n)
{
    static const char *const specs[] = {"cpu", FIXTURE_SIM};
    return n < sizeof specs / sizeof specs[0] ? specs[n] : NULL;
}
