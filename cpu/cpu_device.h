/* SPDX-License-Identifier: MIT */
/* The CPU as a device: its memory is the host's, its operations run on a worker team. */
#ifndef MOE_CPU_DEVICE_H
#define MOE_CPU_DEVICE_H

#include "runtime/device/device.h"
#include "runtime/host/team.h"

typedef struct moe_cpu_device_options {
    moe_team *team;        /* must outlive the device */
    unsigned cpu_features; /* a subset of moe_cpu_features() */
    bool blas_prefill;     /* OpenBLAS multiplies float weights that many rows share; not exact.
                            * Opening fails if OpenBLAS is not installed. */
} moe_cpu_device_options;

int moe_cpu_device_open(moe_device **out, const moe_cpu_device_options *options, moe_error *err);

#endif
