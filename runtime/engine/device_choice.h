/* SPDX-License-Identifier: MIT */
/* Chooses an engine's device by options.device. device_choice.c is the only file that knows the
 * kinds of devices by name. */
#ifndef MOE_ENGINE_DEVICE_CHOICE_H
#define MOE_ENGINE_DEVICE_CHOICE_H

#include <moe/moe.h>

#include "runtime/device/device.h"
#include "runtime/host/team.h"
#include "runtime/program/program.h"

typedef struct moe_device_choice {
    const moe_engine_options *options;
    moe_team *team; /* must outlive the device */
    unsigned cpu_features;
    const moe_program *program; /* the model's program, which the device must carry out */
    unsigned needs;             /* further features (moe_device_feature) that the model requires */
    uint32_t any_type;          /* a weight type that requires MOE_DEVICE_EVERY_TYPE */
} moe_device_choice;

/* Whether the options name no device, so that the engine chooses one that works. */
bool moe_device_choice_is_auto(const moe_engine_options *options);
/* Checks options.device, as far as this is possible without looking at the machine. */
int moe_device_choice_check(const moe_engine_options *options, moe_error *err);
/* NULL and "auto": opens the first usable GPU, else the CPU; logs one line about a GPU that is
 * present and cannot be used. For a named device, opens it or returns the error. */
int moe_device_choice_open(moe_device **out, const moe_device_choice *choice, moe_error *err);

#endif
