/* SPDX-License-Identifier: MIT */
/* The share of the experts that a worker has. */
#ifndef MOE_ENGINE_WORKER_SHARE_H
#define MOE_ENGINE_WORKER_SHARE_H

#include <moe/workers.h>

#include "runtime/engine/engine_state.h"
#include "runtime/workers/worker_links.h"

/* Sets bits [n_layer * n_expert / 8 + 1] for the experts that the options name and the engine's
 * file has. Fails if they name none. */
int moe_worker_experts(const moe_engine *engine, const moe_worker_options *options, uint8_t *bits,
                       moe_error *err);
/* Describes a worker of the links. */
void moe_worker_describe(const moe_worker_links *links, uint32_t i, moe_worker_info *info);

#endif
