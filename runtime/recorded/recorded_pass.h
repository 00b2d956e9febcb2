/* SPDX-License-Identifier: MIT */
/* Passes that the device carries out alone, including routing and experts: recorded once and
 * replayed for every step (moe_recording_ops). There are three kinds:
 *
 *    draft    of one row: stand-ins replace experts that are not resident; the result is a draft's
 *    exact    of a few rows (a token, a chain or tree to verify, a batch of sessions), all with
 *             logits: if all picks were in reach, which is known at the end, these are those of
 *             routing by the host; otherwise the host serves the first layer with one that was not,
 *             and the device goes on behind it
 *    lossy    of one row: others replace missing experts; if one has none, the pass runs again
 *
 * In reach of an exact pass are experts on the device and, where that is not slower
 * (moe_recorded_parts.read_in_place), those in page-locked slots of the host: kernels read them
 * over the link where they lie. */
#ifndef MOE_RECORDED_RECORDED_PASS_H
#define MOE_RECORDED_RECORDED_PASS_H

#include <moe/status.h>
#include <moe/types.h>

#include "runtime/draft/speculation.h"
#include "runtime/lossy/lossy.h"
#include "runtime/pass/pass_hooks.h"

typedef enum moe_recorded_kind {
    MOE_RECORDED_DRAFT,
    MOE_RECORDED_EXACT,
    MOE_RECORDED_LOSSY,
    MOE_RECORDED_KINDS
} moe_recorded_kind;

/* The parts of the engine that recorded passes use; all of them must outlive the passes. */
typedef struct moe_recorded_parts {
    moe_runner *runner; /* complete */
    const moe_tensor_map *map;
    const moe_route_rules *rules;
    moe_speculation *speculation; /* NULL: off */
    moe_lossy *lossy;             /* NULL: off */
    bool keeps_experts; /* else only drafts can be replayed: every expert is loaded when needed */
    moe_switch read_in_place; /* moe_lab_options.read_in_place; OFF if experts do not come and go */
    moe_switch host_compute;  /* OFF: the host computes no experts */
} moe_recorded_parts;

typedef struct moe_recorded_passes moe_recorded_passes;

/* The device memory that all kinds take with these options; 0 if the device cannot record such a
 * model. */
uint64_t moe_recorded_passes_bytes(const moe_device *device, const moe_program *program,
                                   const moe_engine_options *options, bool keeps_experts);
/* Each kind adds a hook to the runner, which takes over the passes that it can replay. The caller
 * closes *out, also after a failure.
 *
 * A kind is not added, and the host routes all its passes, if the device does not record. The same
 * holds for drafts without a self draft, in trees, or with random stand-ins; for other kinds if no
 * expert is kept; and for lossy passes unless all that is done is substitution by lists.
 *
 * The hook leaves a single pass to the host if passes of its form are not recorded (more rows, rows
 * without logits, ..), if earlier passes were tried and experts were missing, or once the device
 * has refused to record a pass with as many rows. */
int moe_recorded_passes_open(moe_recorded_passes **out, const moe_recorded_parts *parts,
                             moe_error *err);
/* Call it when no pass runs any more. */
void moe_recorded_passes_close(moe_recorded_passes **passes);

/* Whether the device plays passes of the kind. NULL is allowed. */
bool moe_recorded_passes_has(const moe_recorded_passes *passes, moe_recorded_kind kind);
/* Counts exact and lossy passes that were replayed whole, those whose result could not be used, and
 * those that the host went on with. NULL is allowed. */
void moe_recorded_pass_counts(const moe_recorded_passes *passes, uint64_t *n, uint64_t *n_missed,
                              uint64_t *n_resumed);

#endif
