/* SPDX-License-Identifier: MIT */
/* Which field of the engine's options cannot act because of what another one says. */
#ifndef MOE_ENGINE_OPTION_NEEDS_H
#define MOE_ENGINE_OPTION_NEEDS_H

#include <moe/moe.h>

/* MOE_ERR_ARGUMENT, naming both fields. After values have been checked. What speculation and lossy
 * modes need to be on, they say themselves (moe_speculation_check(), moe_lossy_check()). */
int moe_option_needs_check(const moe_engine_options *options, moe_error *err);

#endif
