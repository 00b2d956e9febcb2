/* SPDX-License-Identifier: MIT */
/* Computes experts in host memory while the device computes others and the link moves more. It is a
 * CPU device with a team of its own, driven by one thread, so that the host's share of a layer runs
 * in parallel with the rest. Experts' arithmetic is the same on every device, so the results are
 * too.
 *
 *    start(): activations to the host -> [experts on the host's thread] -> finish(): rows back */
#ifndef MOE_PASS_HOST_COMPUTE_H
#define MOE_PASS_HOST_COMPUTE_H

#include "offload/expert_store.h"
#include "runtime/device/device.h"
#include "runtime/pass/pass.h"

typedef struct moe_host_compute moe_host_compute;

typedef struct moe_host_compute_options {
    uint32_t n_threads; /* of the team */
    unsigned cpu_features;
    moe_device *device; /* the device that it assists; both must outlive it */
    const moe_model_config *config;
    uint32_t max_rows;
} moe_host_compute_options;

/* The host memory that it will take. */
uint64_t moe_host_compute_bytes(const moe_model_config *config, uint32_t max_rows);
int moe_host_compute_open(moe_host_compute **out, const moe_host_compute_options *options,
                          moe_error *err);
void moe_host_compute_close(moe_host_compute **host);

/* One layer's share: views[i] is the plan's entry positions[i]. The plan must stay until finish().
 * x: device, [n_rows][n_embd]; NULL if moe_host_compute_x() already holds it. */
typedef struct moe_host_share {
    const moe_runner *runner;
    uint32_t layer;
    const moe_layer_plan *plan;
    const uint32_t *positions;
    const moe_expert_view *views;
    uint32_t n;
    const float *x;
    uint32_t n_rows;
} moe_host_share;

/* The place for activations, [max_rows][n_embd], in memory that the link writes to directly. Not
 * between start() and wait(). */
float *moe_host_compute_x(moe_host_compute *host);
int moe_host_compute_start(moe_host_compute *host, const moe_host_share *share, moe_error *err);
/* Waits for the share; call it also after an error elsewhere. The time is of the computing alone.
 */
int moe_host_compute_wait(moe_host_compute *host, uint32_t *n_rows, uint64_t *ns, moe_error *err);
/* Copies the outputs to their rows of out (device, [ranked slot][n_embd]). */
int moe_host_compute_deliver(moe_host_compute *host, float *out, moe_error *err);

#endif
