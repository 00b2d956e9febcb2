/* SPDX-License-Identifier: MIT */
/* Finds options that have no effect because of the value of another option. */
#ifndef MOE_ENGINE_OPTION_NEEDS_H
#define MOE_ENGINE_OPTION_NEEDS_H

#include <moe/moe.h>

/* Fails with MOE_ERR_ARGUMENT and names both fields. Call it after the values have been checked.
 * Speculation and lossy modes check their own needs (moe_speculation_check(),
 * moe_lossy_check()). */
int moe_option_needs_check(const moe_engine_options *options, moe_error *err);

#endif
