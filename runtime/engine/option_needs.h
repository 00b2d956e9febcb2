/* SPDX-License-Identifier: MIT */
/* Finds options that have no effect because of the value of another option. */
#ifndef MOE_ENGINE_OPTION_NEEDS_H
#define MOE_ENGINE_OPTION_NEEDS_H

#include <moe/moe.h>

/* MOE_ERR_ARGUMENT, naming both fields. Call after values have been checked. Speculation and lossy
 * modes check their own needs (moe_speculation_check(), moe_lossy_check()). */
int moe_option_needs_check(const moe_engine_options *options, moe_error *err);

#endif
