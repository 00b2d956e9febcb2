/* SPDX-License-Identifier: MIT */
/* An engine's options as the library uses them: a complete copy of what the program passed, with
 * the structs of lossy modes and experiments that are attached to it. */
#ifndef MOE_ENGINE_OPTION_SET_H
#define MOE_ENGINE_OPTION_SET_H

#include <moe/lab.h>
#include <moe/lossy_modes.h>
#include <moe/moe.h>

typedef struct moe_option_set {
    moe_engine_options options; /* lossy and lab point to the members below, and are never NULL */
    moe_lossy_options lossy;
    moe_lab_options lab;
} moe_option_set;

/* Copies the program's options by the rule of struct_size; fields that the program does not give
 * get their defaults. Strings still belong to the program. The set must not be moved in memory
 * afterwards. */
int moe_option_set_take(moe_option_set *set, const moe_engine_options *given, moe_error *err);

/* Fails with MOE_ERR_ARGUMENT, naming the field and its possible values, if an enumeration has an
 * invalid value. Checks no other fields. */
int moe_option_values_check(const moe_engine_options *options, moe_error *err);

/* Returns the mode's name for messages, for instance "on-demand". */
const char *moe_offload_name(moe_offload_mode mode);

#endif
