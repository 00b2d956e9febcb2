/* SPDX-License-Identifier: MIT */
/* What the files of the workers' hook share: worker_hook.h (layers), worker_block.h (blocks of a
 * panel), worker_owners.h (who computes what), worker_jobs.h (jobs and their results). */
#ifndef MOE_WORKERS_WORKER_STATE_H
#define MOE_WORKERS_WORKER_STATE_H

#include "runtime/pass/runner.h"
#include "runtime/workers/worker_links.h"

/* Rows that a worker computes. */
typedef struct worker_job {
    moe_worker_link *link; /* NULL: its outputs have come, or are lost */
    uint64_t id;
    uint64_t sent_ns;
    uint32_t first; /* in moe_workers.slots; of a block's job, in worker_block.sent */
    uint32_t n_outs;
    uint32_t n_experts;
} worker_job;

typedef enum worker_pair_state { PAIR_WAITS, PAIR_IS_THERE, PAIR_IS_LOST } worker_pair_state;

/* A block of a panel (runtime/pass/panel_block.h). Its plan lists pairs of an expert and a row.
 * Those that workers compute are sent ahead of their turn, as many as there are places for their
 * outputs, and are taken in the plan's order. Between two parts of a block, passes of other
 * sessions may have jobs of their own. */
typedef struct worker_block {
    uint8_t *owners; /* [n_expert], by the plan's entries */
    /* Rings with a place for each pair that was sent and has not been taken. */
    float *outs;     /* [max_pairs][n_in] */
    uint8_t *states; /* [max_pairs]: worker_pair_state */
    uint32_t *sent;  /* [max_pairs]: places of pairs, job by job; also a ring */
    /* [max_pairs]: the plan's pairs of the window that is being sent, and who computes each */
    uint32_t *pairs;
    uint8_t *pair_owners;
    uint32_t max_pairs;
    uint32_t n_sent, n_taken;       /* pairs, since the block began or was broken */
    uint32_t next_entry, next_pair; /* of the plan: what is sent next */
    bool is_broken;                 /* a job was lost: all that was not taken is sent anew */
    worker_job *jobs;               /* [max_pairs] */
    uint32_t n_jobs;
    uint32_t n_left; /* entries that workers compute and that were not taken */
    /* For the costs: */
    uint32_t n_read; /* missing experts that this engine computes */
    uint64_t begin_ns, wait_ns;
    uint32_t n_experts[MOE_MOST_WORKERS];
    uint64_t busy_ns[MOE_MOST_WORKERS], last_ns[MOE_MOST_WORKERS];
} worker_block;

typedef struct moe_workers_stats {
    uint32_t n_workers, n_ready;
    uint64_t n_jobs, n_experts, n_rows; /* computed by workers: jobs, (layer, expert) pairs, rows of
                                         * these */
    uint64_t bytes_sent, bytes_received;
    uint64_t wait_ns;        /* waited for workers, with nothing left to do here */
    uint64_t n_lost_experts; /* that a worker did not deliver: computed here */
    uint64_t n_lost_workers; /* how often a worker was left out */
    uint64_t n_moves;        /* experts that workers were told to have in addition */
} moe_workers_stats;

typedef struct moe_workers {
    moe_runner *runner;
    const moe_tensor_map *map;
    moe_pass_hook hook;
    moe_worker_links links;
    uint8_t *key;
    bool all;
    uint64_t last_id;
    moe_worker_choice choice;
    /* For dividing the experts anew after every `rebalance` passes; 0: never. */
    size_t rebalance, n_passes;
    float *heat; /* [n_layer * n_expert]: how often each was missing here; NULL: never */
    double kept; /* which part of the experts that workers have this engine computed lately */
    moe_workers_stats stats;
    const moe_worker_costs *costs[MOE_MOST_WORKERS];
    /* Of the current layer: */
    bool *resident;    /* [n_expert] */
    uint32_t *n_rows;  /* [n_expert]: rows that chose the expert */
    uint32_t *missing; /* [n_expert]: missing experts that workers have */
    uint32_t *holders; /* [n_expert]: of each of these, bits of the workers that have it */
    uint8_t *owners;   /* [n_expert]: of each of these, who computes it */
    uint32_t n_read;   /* further missing experts, which this engine reads */
    uint64_t begin_ns; /* when this engine began with its own experts */
    uint32_t n_pass_rows;
    uint8_t *owner;   /* [n_expert]: the worker's number, or MOE_WORKER_HERE */
    uint32_t *slots;  /* [max_rows * n_used]: row * n_used + rank, job by job */
    float *outs;      /* [max_rows * n_used][n_in]: the outputs of slots */
    bool *is_there;   /* [max_rows * n_used]: whether the output has come */
    worker_job *jobs; /* [max_jobs] */
    uint32_t n_slots, n_jobs, max_jobs;
    uint32_t *rows;   /* [max_rows]: of the job that is being made */
    float *x;         /* [max_rows][n_in]: what the experts read, on the host */
    uint32_t *chosen; /* [max_rows * n_used]: keeps the layer's choice while lost outputs are
                       * computed */
    worker_block block;
} moe_workers;

#endif
