/* SPDX-License-Identifier: MIT */
/* Passes of one row that the device carries out alone, routing and experts with the rest: recorded
 * once and played for every token (moe_recording_ops). Of three kinds:
 *
 *     draft    experts that are not resident are stood in for; the outcome is a draft's
 *     exact    whether all picks were resident is known when the pass is over: then its logits are
 *              those of routing by the host, else it has been for nothing and is done again
 *     lossy    likewise, after buddies have stood in for what was missing */
#ifndef MOE_ENGINE_RECORDED_PASS_H
#define MOE_ENGINE_RECORDED_PASS_H

#include <moe/moe.h>

#include "runtime/pass/pass_hooks.h"

typedef enum moe_recorded_kind {
    MOE_RECORDED_DRAFT,
    MOE_RECORDED_EXACT,
    MOE_RECORDED_LOSSY,
    MOE_RECORDED_KINDS
} moe_recorded_kind;

typedef struct moe_recorded_pass moe_recorded_pass;

/* What all kinds will take of the device's memory, by the options; 0 where the device does not
 * record. */
uint64_t moe_recorded_passes_bytes(const moe_device *device, const moe_model_config *config,
                                   const moe_engine_options *options);
/* Of an engine whose speculation, lossy modes and experts are open: engine->recorded. Each kind
 * adds a hook to the runner, which takes over the passes that it can play. A kind stays NULL where
 * the host routes: without a device that records; drafts without a self draft, in trees, and with
 * stand-ins drawn at random; the others where no expert is kept; lossy ones unless buddies act
 * alone, by rules that devices know.
 *
 * A pass is not taken over when it is none that is recorded (more than one row, a branch of a tree,
 * ..), when it was tried and an expert was missing, and once the device has refused to record it;
 * then it is as if nothing had happened. */
int moe_recorded_passes_open(struct moe_engine *engine, moe_error *err);
void moe_recorded_passes_close(struct moe_engine *engine);

/* Exact and lossy passes that were played, and those besides that were for nothing. */
void moe_recorded_pass_counts(const struct moe_engine *engine, uint64_t *n, uint64_t *n_missed);

#endif
