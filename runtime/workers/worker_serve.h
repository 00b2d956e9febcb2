/* SPDX-License-Identifier: MIT */
/* A worker's loop: accepts coordinators and has their jobs computed, one after another. It keeps no
 * data of a job afterwards, so a worker may be killed at any time. */
#ifndef MOE_WORKERS_WORKER_SERVE_H
#define MOE_WORKERS_WORKER_SERVE_H

#include <moe/types.h>

#include "runtime/workers/worker_messages.h"

typedef struct moe_worker_job {
    uint32_t layer, n_rows; /* in range */
    const float *x;         /* [n_rows][n_in] */
    /* Not aligned: copy them. uint32_t and float [n_rows][n_used]. The experts are in range and in
     * ascending order, or MOE_PLAN_NO_EXPERT. */
    const uint8_t *chosen, *weights;
} moe_worker_job;

typedef struct moe_worker_parts {
    moe_wire *wire; /* listens; belongs to the caller */
    moe_worker_identity identity;
    moe_worker_key key;
    uint32_t max_rows;
    const uint8_t *able;    /* bits of the experts that this worker can compute */
    const uint8_t *experts; /* of these, the ones that it tells coordinators to ask it for */
    uint32_t n_slots;       /* experts that its memory has room for */
    /* Computes a job. Writes outs: float [n_outs][n_in], in the order of the job's choices. */
    int (*compute)(void *context, const moe_worker_job *job, uint8_t *outs, uint32_t n_outs,
                   moe_error *err);
    /* A coordinator asks for other `experts` [moe_expert_bit_bytes()]. */
    void (*hold)(void *context, const uint8_t *experts);
    bool (*is_stopped)(void *context);
    void (*idle)(void *context); /* called while there is nothing to do, some times a second */
    void *context;
    moe_log_fn log;
    void *user;
} moe_worker_parts;

typedef struct moe_worker_counts {
    uint64_t n_coordinators, n_jobs, n_rows, n_outs; /* since it began */
} moe_worker_counts;

/* Serves until is_stopped() says so, or the wire fails. */
int moe_worker_serve_wire(const moe_worker_parts *parts, moe_worker_counts *counts, moe_error *err);

#endif
