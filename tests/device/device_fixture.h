/* SPDX-License-Identifier: MIT */
/* Opening devices of every kind, for the tests of devices. */
#ifndef MOE_TESTS_DEVICE_FIXTURE_H
#define MOE_TESTS_DEVICE_FIXTURE_H

#include "runtime/device/device.h"
#include "runtime/host/team.h"

typedef struct device_fixture {
    moe_team *team;
    moe_device *device;
} device_fixture;

#define FIXTURE_SIM "sim:memory=64M,link=4GB/s,latency=20us"

/* spec: of device_spec_at(); fails the test when it cannot. */
void open_device(device_fixture *fixture, const char *spec);
void close_device(device_fixture *fixture);
/* The n-th kind of device that the contract holds for, or NULL. device_kinds.c and others of its
 * kind have this, and open what is neither "cpu" nor "sim:...". */
const char *device_spec_at(size_t n);
int open_other_device(moe_device **out, const char *spec, moe_error *err);
/* Opens each kind in turn. */
void for_every_device(void (*check)(moe_device *device));

/* Device memory, filled from the host's; fails the test when there is none. */
void *device_alloc(moe_device *device, size_t bytes);
void *device_upload(moe_device *device, const void *src, size_t bytes);
/* Values in [-0.5, 0.5) that look drawn at random, the same for the same seed. */
void fill_values(float *values, size_t n, uint32_t seed);

#endif
