/* SPDX-License-Identifier: MIT */
/* Which device an engine works on. Its source is the only one that names backends. */
#ifndef MOE_ENGINE_DEVICE_CHOICE_H
#define MOE_ENGINE_DEVICE_CHOICE_H

#include <moe/moe.h>

#include "runtime/device/device.h"
#include "runtime/host/team.h"

typedef struct moe_device_choice {
    const moe_engine_options *options;
    moe_team *team; /* must outlive the device */
    unsigned cpu_features;
} moe_device_choice;

/* No device is named: the engine may take what works. */
bool moe_device_choice_is_auto(const moe_engine_options *options);
/* What can be said of options.device without looking at the machine. */
int moe_device_choice_check(const moe_engine_options *options, moe_error *err);
/* NULL and "auto": the first GPU that can be used and opened, else the CPU; one log line tells of a
 * GPU that is there and cannot be used. A device that is named is opened, or the reason why not
 * returned. */
int moe_device_choice_open(moe_device **out, const moe_device_choice *choice, moe_error *err);

#endif
