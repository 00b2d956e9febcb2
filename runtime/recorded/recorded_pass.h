/* SPDX-License-Identifier: MIT */
/* Passes that the device carries out alone, including routing and experts: recorded once and
 * replayed for every step (moe_recording_ops). There are three kinds:
 *
 *    draft    one row. Stand-ins replace experts that are not resident; the result is a draft's.
 *    exact    a few rows (a token, a chain or tree to verify, a batch of sessions), all with
 *             logits. If all picks were in reach, which is known at the end, the logits are the
 *             same as when the host routes. Otherwise the host computes the first layer with a
 *             pick that was not in reach, and the device continues behind it.
 *    lossy    one row. Other experts replace missing ones; if a missing expert has no
 *             replacement, the pass runs again.
 *
 * In reach of an exact pass are experts on the device, and experts in page-locked slots of the host
 * if reading them there is not slower (moe_recorded_parts.read_in_place): kernels then read them
 * over the link. */
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
    bool keeps_experts;       /* false: every expert is loaded when needed, so only drafts can be
                               * replayed */
    moe_switch read_in_place; /* moe_lab_options.read_in_place; OFF if all experts stay on the
                               * device */
    moe_switch host_compute;  /* OFF: the host computes no experts */
} moe_recorded_parts;

typedef struct moe_recorded_passes moe_recorded_passes;

/* Returns the device memory that all kinds take with these options; 0 if the device cannot record
 * such a model. */
uint64_t moe_recorded_passes_bytes(const moe_device *device, const moe_program *program,
                                   const moe_engine_options *options, bool keeps_experts);
/* Opens the kinds that the device can replay. Each kind adds a hook to the runner, which takes over
 * the passes that it can replay. The caller closes *out, also after a failure. A kind is not added,
 * and the host routes all its passes, in these cases: the device does not record; drafts: there is
 * no self draft, or it uses trees or random stand-ins; other kinds: no expert is kept; lossy
 * passes: the modes do more than substitution by lists.
 *
 * The hook leaves a single pass to the host if passes of its form are not recorded (more rows, rows
 * without logits, ..), if earlier passes were tried and experts were missing, or once the device
 * has refused to record a pass with as many rows. */
int moe_recorded_passes_open(moe_recorded_passes **out, const moe_recorded_parts *parts,
                             moe_error *err);
/* Closes the kinds. No pass may be running. */
void moe_recorded_passes_close(moe_recorded_passes **passes);

/* Whether the device replays passes of this kind. passes may be NULL. */
bool moe_recorded_passes_has(const moe_recorded_passes *passes, moe_recorded_kind kind);
/* Returns counts of exact and lossy passes: replayed completely; with a result that could not be
 * used; continued by the host. passes may be NULL. */
void moe_recorded_pass_counts(const moe_recorded_passes *passes, uint64_t *n, uint64_t *n_missed,
                              uint64_t *n_resumed);

#endif
