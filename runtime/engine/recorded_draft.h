/* SPDX-License-Identifier: MIT */
/* Passes of a self draft that the device carries out alone: routing, stand-ins and experts are
 * resolved there, and the pass is recorded once and played for every token (moe_recording_ops). */
#ifndef MOE_ENGINE_RECORDED_DRAFT_H
#define MOE_ENGINE_RECORDED_DRAFT_H

#include <moe/moe.h>

#include "runtime/engine/pass.h"

typedef struct moe_recorded_draft moe_recorded_draft;

/* What opening one will take of the device's memory, by the options; 0 where the device does not
 * offer it or nothing is drafted so. */
uint64_t moe_recorded_draft_bytes(const moe_device *device, const moe_model_config *config,
                                  const moe_engine_options *options);
/* Of an engine whose speculation is open. *out stays NULL where drafts are routed by the host:
 * without a device that records, without a self draft, and with stand-ins drawn at random. */
int moe_recorded_draft_open(moe_recorded_draft **out, struct moe_engine *engine, moe_error *err);
void moe_recorded_draft_close(moe_recorded_draft **draft, moe_device *device);

/* The pass, with the bits that routing by the host would give for the experts that are resident as
 * it begins. *done false: it is none that is recorded (more than one row, a branch of a tree), or
 * the device has refused to, once and for all; nothing has happened then. */
int moe_recorded_draft_run(struct moe_engine *engine, const moe_pass *pass, bool *done,
                           moe_error *err);
/* The routed experts of a layer, while that is being recorded: from buffers->norm to ->branch. */
int moe_recorded_draft_experts(struct moe_engine *engine, uint32_t layer, moe_error *err);

#endif
