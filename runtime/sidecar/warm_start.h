/* SPDX-License-Identifier: MIT */
/* Fills expert slots before anything requests the experts, the hottest experts first. */
#ifndef MOE_SIDECAR_WARM_START_H
#define MOE_SIDECAR_WARM_START_H

#include <moe/status.h>
#include <moe/types.h>

#include "runtime/pass/pass.h"

/* Begins to fill empty slots, while nothing else is requested, with experts that the sidecar has
 * seen used. hotness: [n_layer][n_expert]; NULL: with all experts, layer by layer, each layer in
 * the order of the file. */
void moe_warm_start(const moe_runner *runner, const float *hotness);
/* Loads all experts, which must fit, and waits for them. hotness may be NULL. */
int moe_warm_start_all(const moe_runner *runner, const float *hotness, moe_progress_fn progress,
                       void *user, moe_error *err);

#endif
