/* SPDX-License-Identifier: MIT */
/* Provides the forecasts for a simulated cache: those of a simulated draft, or those that a
 * recorded run made. */
#ifndef MOE_CACHE_FORECAST_SOURCE_H
#define MOE_CACHE_FORECAST_SOURCE_H

#include <moe/trace.h>

#include "cache/access_list.h"

typedef struct moe_forecast_source moe_forecast_source;

/* Creates a source. *out stays NULL if the options ask for no lookahead. trace and list must
 * outlive the source. Fails with MOE_ERR_UNSUPPORTED if the policy does not use forecasts or the
 * trace contains none. */
int moe_forecast_source_create(moe_forecast_source **out, const moe_simulation *options,
                               const moe_policy *policy, const moe_trace *trace,
                               const moe_access_list *list, moe_error *err);
void moe_forecast_source_destroy(moe_forecast_source **source);

/* Returns the forecasts that are known before `pass`, for it and later passes. Call it in the
 * order of the passes. The result is valid until the next call. */
const moe_policy_forecast *moe_forecast_source_look(moe_forecast_source *source, uint64_t pass,
                                                    size_t *n);

#endif
