/* SPDX-License-Identifier: MIT */
/* Jobs of workers under way, and their results. */
#ifndef MOE_WORKERS_WORKER_JOBS_H
#define MOE_WORKERS_WORKER_JOBS_H

#include "runtime/workers/worker_state.h"

/* A job's message while it is filled in. */
typedef struct worker_job_parts {
    uint8_t *message;
    size_t n_bytes;
    moe_rows_form form;
    uint32_t n_rows;
    uint8_t *x, *chosen, *weights; /* see moe_job_head; not aligned */
} worker_job_parts;

/* How many outputs a job may have, so that messages stay small and a worker's results come back
 * while it computes the next ones. */
uint32_t moe_workers_most_outs(const moe_workers *w);
/* Rows travel in 8 bits if that is what the layer's experts read. Experts of a layer have the same
 * types. */
moe_rows_form moe_workers_form(const moe_tensor_map *map, uint32_t layer, uint32_t n_in);
int moe_workers_new_job(moe_workers *w, uint32_t layer, uint32_t n_rows, worker_job_parts *parts,
                        moe_error *err);
/* Sends the message, and sets job->id and sent_ns. */
void moe_workers_send(moe_workers *w, worker_job *job, const worker_job_parts *parts);
/* Takes messages that came between layers. */
void moe_workers_hear(moe_workers *w);
/* Leaves out workers that are gone or took too long; returns whether any job of the layer is under
 * way. */
bool moe_workers_look(moe_workers *w);
/* Takes the next message, if one comes soon. Fails if the step was cancelled. */
int moe_workers_listen(moe_workers *w, const moe_pass *pass, moe_error *err);

/* Outputs of a block's job have come (float [n_outs][n_in], not aligned), or are lost (NULL). */
void moe_workers_accept_pairs(moe_workers *w, const worker_job *job, const uint8_t *outs,
                              uint64_t time_ns);

#endif
