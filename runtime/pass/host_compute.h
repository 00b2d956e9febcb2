/* SPDX-License-Identifier: MIT */
/* Computes experts in host memory while the device computes others and the link moves more. It is a
 * CPU device with a team of its own, driven by one thread, so that the host's share of a layer runs
 * in parallel with the rest. Experts' arithmetic is the same on every device, so the results are
 * too.
 *
 *    start(): activations to the host -> [experts on the host's thread] -> finish(): rows back */
#ifndef MOE_PASS_HOST_COMPUTE_H
#define MOE_PASS_HOST_COMPUTE_H

#include "runtime/device/device.h"
#include "runtime/model/model_config.h"
#include "runtime/pass/pass.h"

typedef struct moe_host_compute moe_host_compute;

typedef struct moe_host_compute_options {
    uint32_t n_threads; /* of the team */
    unsigned cpu_features;
    uint64_t weight_bytes; /* of the experts */
    moe_device *device;    /* the device that it assists; both must outlive it */
    const moe_model_config *config;
    uint32_t max_rows;
} moe_host_compute_options;

/* The host memory that it will take. */
uint64_t moe_host_compute_bytes(const moe_model_config *config, uint32_t max_rows);
int moe_host_compute_open(moe_host_compute **out, const moe_host_compute_options *options,
                          moe_error *err);
void moe_host_compute_close(moe_host_compute **host);

/* ---- A layer, for the pass. Each does nothing if runner->host is NULL. ---- */

/* Around experts that the device computes: tells the store how long it takes for so many, by the
 * device's clock if it queues them. */
uint64_t moe_host_compute_time(moe_runner *runner);
void moe_host_compute_timed(moe_runner *runner, uint64_t begin, uint32_t n_experts,
                            uint32_t n_rows);
/* Before the layer is routed: queues the copying of the experts' inputs to the host, where that is
 * cheaper than to fetch them once the host is known to compute an expert. */
int moe_host_compute_bring_x(moe_runner *runner, uint32_t layer, uint32_t n_rows, moe_error *err);
/* After the store's begin(): starts the experts of the layer that the store gives to the host, if
 * any. The layer's plan must stay until finish(). After an error there is nothing to finish. */
int moe_host_compute_start(moe_runner *runner, uint32_t layer, uint32_t n_rows, moe_error *err);
/* Waits for what start() has started; call it also after an error elsewhere, `status`, which it
 * returns. Else it copies the outputs to their places in buffers->rank_out. */
int moe_host_compute_finish(moe_runner *runner, int status, moe_error *err);

#endif
