/* SPDX-License-Identifier: MIT */
/* What workers are worth to an engine: measures how long they take for a row of a token, and
 * estimates the time of a token from that. */
#ifndef MOE_WORKERS_WORKER_MEASURE_H
#define MOE_WORKERS_WORKER_MEASURE_H

#include "runtime/model/tensor_map.h"
#include "runtime/workers/worker_links.h"

/* From sending a row until its outputs come: job_s, and expert_s for each expert that it goes
 * through. 0: not measured. */
typedef struct moe_worker_speed {
    double job_s, expert_s;
} moe_worker_speed;

/* Sends the worker some jobs of one row, and waits for the answers. A worker that fails or is
 * overdue is left out. */
void moe_worker_measure(moe_worker_links *links, const moe_tensor_map *map, uint32_t worker,
                        moe_worker_speed *speed);

/* A token of one sequence, where all times are measured. */
typedef struct moe_worker_token {
    double jobs, bytes_sent, bytes_received; /* if workers compute all missing experts they have */
    double workers_s;                        /* how long its layers then wait for workers */
    double saved_s; /* how long this engine would take to read the same experts */
    double wait_s;  /* if each layer is divided as `auto` divides it */
} moe_worker_token;

/* Estimates a token by drawing which experts it chooses, and which of these are missing here:
 * uniformly, with the same numbers each time. read_s: how long this engine takes to read an
 * expert. */
int moe_worker_token_estimate(const moe_worker_links *links, const moe_tensor_map *map,
                              const moe_worker_speed *speeds, double hit_rate, double read_s,
                              moe_worker_token *token, moe_error *err);

#endif
