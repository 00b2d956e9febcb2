/* SPDX-License-Identifier: MIT */
/* The source of a simulated cache's forecasts: a simulated draft, or what a run recorded. */
#ifndef MOE_CACHE_FORECAST_SOURCE_H
#define MOE_CACHE_FORECAST_SOURCE_H

#include <moe/trace.h>

#include "cache/access_list.h"

typedef struct moe_forecast_source moe_forecast_source;

/* *out stays NULL if the options ask for no lookahead. trace and list must outlive the source.
 * MOE_ERR_UNSUPPORTED: the policy takes no forecasts, or the trace has none. */
int moe_forecast_source_create(moe_forecast_source **out, const moe_simulation *options,
                               const moe_policy *policy, const moe_trace *trace,
                               const moe_access_list *list, moe_error *err);
void moe_forecast_source_destroy(moe_forecast_source **source);

/* The forecasts for the passes from `pass` on. Call in the order of the passes; valid until the
 * next call. */
const moe_policy_forecast *moe_forecast_source_look(moe_forecast_source *source, uint64_t pass,
                                                    size_t *n);

#endif
