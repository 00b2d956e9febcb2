/* SPDX-License-Identifier: MIT */
/* Replaces what the routers choose by a recorded routing, so that the cache behaviour of a model
 * with random weights is that of a real one. The text is then meaningless, and all figures say so.
 */
#ifndef MOE_ENGINE_ROUTE_REPLAY_H
#define MOE_ENGINE_ROUTE_REPLAY_H

#include <moe/trace.h>

#include "runtime/device/device.h"
#include "runtime/model/model_config.h"

/* Opens the trace and checks that it is of the model's geometry. */
int moe_route_replay_open(moe_trace **out, const char *path, const moe_model_config *config,
                          moe_error *err);

/* Row at position p takes the experts of the trace's row p modulo its rows. chosen:
 * [n_rows][n_used]. */
void moe_route_replay(const moe_trace *trace, uint32_t layer, const moe_kv_row *rows,
                      uint32_t n_rows, uint32_t n_used, uint32_t *chosen);

#endif
