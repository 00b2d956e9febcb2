/* SPDX-License-Identifier: MIT */
/* Passes of one row that the device carries out alone, routing and experts with the rest: recorded
 * once and played for every token (moe_recording_ops). Of two kinds:
 *
 *     drafts   experts that are not resident are stood in for; the outcome is a draft's
 *     exact    whether all picks were resident is known when the pass is over: then its logits are
 *              those of routing by the host, else it has been for nothing and is done again */
#ifndef MOE_ENGINE_RECORDED_PASS_H
#define MOE_ENGINE_RECORDED_PASS_H

#include <moe/moe.h>

#include "runtime/engine/pass.h"

typedef struct moe_recorded_pass moe_recorded_pass;

/* What both kinds will take of the device's memory, by the options; 0 where the device does not
 * record. */
uint64_t moe_recorded_passes_bytes(const moe_device *device, const moe_model_config *config,
                                   const moe_engine_options *options);
/* Of an engine whose speculation and experts are open: engine->recorded_draft, ->recorded_exact.
 * They stay NULL where the host routes: without a device that records; drafts without a self draft,
 * in trees, and with stand-ins drawn at random; exact ones where no expert is kept. */
int moe_recorded_passes_open(struct moe_engine *engine, moe_error *err);
void moe_recorded_pass_close(moe_recorded_pass **recorded, moe_device *device);

/* The pass, its logits handed over. *done false: it is none that is recorded (more than one row, a
 * branch of a tree, ..), it was tried and an expert was missing, or the device has refused to
 * record it, once and for all; it is as if nothing had happened. recorded may be NULL. */
int moe_recorded_pass_run(struct moe_engine *engine, moe_recorded_pass *recorded,
                          const moe_pass *pass, bool *done, moe_error *err);
/* The routed experts of a layer, while that is being recorded: from buffers->norm to ->branch. */
int moe_recorded_pass_experts(struct moe_engine *engine, moe_recorded_pass *recorded,
                              uint32_t layer, moe_error *err);

/* Exact passes that were played, and those besides that were for nothing. */
void moe_recorded_pass_counts(const moe_recorded_pass *recorded, uint64_t *n, uint64_t *n_missed);

#endif
