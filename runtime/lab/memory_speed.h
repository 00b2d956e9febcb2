/* SPDX-License-Identifier: MIT */
/* Measures how fast a team of threads reads memory when it does nothing else. This bounds decoding,
 * which reads every active weight once for each token. The threads sum parts of a buffer far larger
 * than the caches. */
#ifndef MOE_LAB_MEMORY_SPEED_H
#define MOE_LAB_MEMORY_SPEED_H

#include "runtime/device/device.h"
#include "runtime/host/team.h"

#define MOE_MEMORY_SPEED_BYTES ((size_t)512 << 20) /* of the buffer, the device's */

/* Returns the fastest of three measurements. The device's memory must be the host's. */
int moe_memory_speed(moe_team *team, moe_device *device, double *bytes_per_s, moe_error *err);

#endif
