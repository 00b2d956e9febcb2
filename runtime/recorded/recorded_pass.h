/* SPDX-License-Identifier: MIT */
/* Passes of one row that the device carries out alone, routing and experts with the rest: recorded
 * once and played for every token (moe_recording_ops). Of three kinds:
 *
 *     draft    experts that are not resident are stood in for; the outcome is a draft's
 *     exact    whether all picks were resident is known when the pass is over: then its logits are
 *              those of routing by the host, else it has been for nothing and is done again
 *     lossy    likewise, after buddies have stood in for what was missing */
#ifndef MOE_RECORDED_RECORDED_PASS_H
#define MOE_RECORDED_RECORDED_PASS_H

#include <moe/moe.h>

#include "runtime/draft/speculation.h"
#include "runtime/lossy/lossy.h"
#include "runtime/pass/pass_hooks.h"

typedef enum moe_recorded_kind {
    MOE_RECORDED_DRAFT,
    MOE_RECORDED_EXACT,
    MOE_RECORDED_LOSSY,
    MOE_RECORDED_KINDS
} moe_recorded_kind;

/* What recorded passes work on; all of it must outlive them. */
typedef struct moe_recorded_parts {
    moe_runner *runner; /* complete */
    const moe_tensor_map *map;
    const moe_route_rules *rules;
    moe_speculation *speculation; /* NULL: off */
    moe_lossy *lossy;             /* NULL: off */
    bool keeps_experts; /* else only drafts can be played: every expert comes when it is wanted */
} moe_recorded_parts;

typedef struct moe_recorded_passes moe_recorded_passes;

/* What all kinds will take of the device's memory, by the options; 0 where the device does not
 * record. */
uint64_t moe_recorded_passes_bytes(const moe_device *device, const moe_model_config *config,
                                   const moe_engine_options *options, bool keeps_experts);
/* Each kind adds a hook to the runner, which takes over the passes that it can play. A kind is left
 * to the host's routing without a device that records; drafts without a self draft, in trees, and
 * with stand-ins drawn at random; the others where no expert is kept; lossy ones unless buddies act
 * alone, by rules that devices know. *out is closed by the caller, also after a failure.
 *
 * A pass is not taken over when it is none that is recorded (more than one row, a branch of a tree,
 * ..), when it was tried and an expert was missing, and once the device has refused to record it;
 * then it is as if nothing had happened. */
int moe_recorded_passes_open(moe_recorded_passes **out, const moe_recorded_parts *parts,
                             moe_error *err);
/* Passes must not run any more. */
void moe_recorded_passes_close(moe_recorded_passes **passes);

/* Whether the device plays passes of the kind. NULL is allowed. */
bool moe_recorded_passes_has(const moe_recorded_passes *passes, moe_recorded_kind kind);
/* Exact and lossy passes that were played, and those besides that were for nothing. NULL is
 * allowed. */
void moe_recorded_pass_counts(const moe_recorded_passes *passes, uint64_t *n, uint64_t *n_missed);

#endif
