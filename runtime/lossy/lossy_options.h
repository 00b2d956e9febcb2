/* SPDX-License-Identifier: MIT */
/* Parses the options of the lossy modes. */
#ifndef MOE_LOSSY_LOSSY_OPTIONS_H
#define MOE_LOSSY_LOSSY_OPTIONS_H

#include <moe/lab.h>
#include <moe/lossy_modes.h>

#include "runtime/lossy/buddy.h"
#include "runtime/lossy/expert_budget.h"

moe_expert_budget moe_lossy_budget(const moe_engine_options *options);
/* Whether layers are also computed exactly, for a budget. */
bool moe_lossy_is_measured(const moe_engine_options *options);
moe_buddy_options moe_lossy_buddies(const moe_lossy_options *options);

#endif
