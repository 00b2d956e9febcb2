/* SPDX-License-Identifier: MIT */
/* Parses the options of the lossy modes. */
#ifndef MOE_LOSSY_LOSSY_OPTIONS_H
#define MOE_LOSSY_LOSSY_OPTIONS_H

#include <moe/moe.h>

#include "runtime/lossy/buddy.h"
#include "runtime/lossy/expert_budget.h"

/* The parts of a buddy setting beyond moe_buddy_options. */
typedef struct moe_buddy_settings {
    moe_buddy_options options;
    float alpha;
    uint32_t max;
    uint32_t tae_percentile;
} moe_buddy_settings;

bool moe_lossy_has_buddies(const moe_engine_options *options);
int moe_buddy_settings_parse(moe_buddy_settings *settings, const char *text, moe_error *err);
/* *measured: layers are computed exactly, too. */
int moe_budget_settings_parse(moe_expert_budget *budget, bool *measured,
                              const moe_engine_options *options, moe_error *err);

#endif
