/* SPDX-License-Identifier: MIT */
/* Workers: processes, on this machine or others, that compute experts for an engine elsewhere. A
 * worker has a share of the experts in its memory and keeps nothing of anybody's text. The engine
 * that has the sessions, called the coordinator (moe_engine_options.workers), sends it rows. It
 * adds up the results in the same order as without workers, so the text is the same with any number
 * of workers, also if one of them dies during a step.
 *
 *     options.experts_only = true;                          // a worker
 *     moe_engine_open(&engine, &options, &err);
 *     moe_worker_serve(engine, &worker_options, &err);
 *
 * The coordinator has the model's file; a worker has the same, or a file of its share alone
 * (moe_split_experts()). The messages have checksums, and each end shows the other that
 * it knows the key; they are not encrypted. Errors and ownership are as in moe.h.
 *
 * Threads (the groups are explained in moe.h):
 *   free:    moe_worker_options_init_sized, moe_worker_options_init, moe_plan_workers,
 *            moe_split_experts
 *   in turn: moe_worker_serve, moe_engine_get_worker */
#ifndef MOE_WORKERS_H
#define MOE_WORKERS_H

#include <moe/moe.h>
#include <moe/speed.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct moe_worker_options {
    size_t struct_size; /* set by moe_worker_options_init() */
    /* "HOST:PORT" to listen at; port 0: any that is free. Required. Without a key the host must be
     * this machine alone (127.0.0.1, localhost, ::1). */
    const char *listen;
    const uint8_t *key; /* [key_bytes] coordinators have the same; NULL: none */
    size_t key_bytes;
    /* The experts are divided into n_shares parts, each with experts of every layer. This worker
     * computes part number `share`, 1..n_shares. 0 and 0: all experts. */
    uint32_t share, n_shares;
    /* Called once the worker listens. May be NULL. */
    void (*started)(uint16_t port, uint64_t n_experts, void *user);
    /* Called some times a second and between jobs; true ends moe_worker_serve(). Required. */
    bool (*is_stopped)(void *user);
    void *user; /* passed to started and is_stopped */
    /* The experts that this worker computes, in place of a share: numbers and ranges of experts of
     * every layer, or of some layers that stand before a colon: "0-31,64" or "3-5:0-63,6:7". NULL:
     * those of the share. */
    const char *experts;
} moe_worker_options;

MOE_API void moe_worker_options_init_sized(moe_worker_options *options, size_t struct_size);
static inline void moe_worker_options_init(moe_worker_options *options)
{
    moe_worker_options_init_sized(options, sizeof *options);
}

/* Serves coordinators with an engine that was opened with experts_only, until is_stopped() says so.
 * MOE_ERR_UNSUPPORTED: the library was built without UCX. moe_engine_stats.worker_jobs and
 * worker_rows count what it has done. */
MOE_API int moe_worker_serve(moe_engine *engine, const moe_worker_options *options, moe_error *err);

/* Writes a file with the model's header, and of its weights only the experts of worker->share or
 * worker->experts, each at its own place. moe_worker_serve() needs no more: give it this file as
 * options.model_path. It has the model's fingerprint; nothing but a worker can open it. A model in
 * several files becomes as many: path must then end in "-00001-of-0000N.gguf", as the first of
 * them does. Reads options->model_path and metadata_overrides, and calls options->progress. Sets
 * *bytes to the size of what was written, unless it is NULL. */
MOE_API int moe_split_experts(const moe_engine_options *options, const moe_worker_options *worker,
                              const char *path, uint64_t *bytes, moe_error *err);

/* One of an engine's workers. */
typedef struct moe_worker_info {
    size_t struct_size; /* set by the program: sizeof(moe_worker_info) */
    char name[96];      /* "host:port", as it was given */
    uint64_t ready;     /* 1: it answers */
    uint64_t experts;   /* that it computes, of all layers together */
    uint64_t slots;     /* experts that its memory has room for */
    uint64_t jobs;      /* sent to it */
    uint64_t computed;  /* experts of these jobs */
    uint64_t lost;      /* how often it was left out */
    /* Measured times of a row of one token, from sending it until its outputs come: of the job, and
     * of each expert. 0: not measured. */
    double job_s, expert_s;
} moe_worker_info;

/* Describes worker number i, of moe_engine_stats.workers. Sets bit layer * n_expert + expert of
 * `experts` for each expert that it computes, (n_layer * n_expert + 7) / 8 bytes; NULL: does not
 * say. */
MOE_API int moe_engine_get_worker(const moe_engine *engine, uint32_t i, moe_worker_info *info,
                                  uint8_t *experts);

/* What workers would be worth for a token of one sequence. */
typedef struct moe_worker_estimate {
    size_t struct_size;      /* set by the program: sizeof(moe_worker_estimate) */
    uint64_t workers, ready; /* that were named; that answer */
    uint64_t experts;        /* that some worker computes */
    double jobs;             /* of a token: messages each way, if workers compute all that misses */
    double bytes_sent, bytes_received; /* likewise */
    double workers_s;                  /* how long a token then waits for workers */
    double saved_s; /* how long the disk and the link would take for the same experts; 0: not
                     * known */
    double wait_s;  /* how long a token waits if each layer's experts are divided by these times */
    double tokens_per_s; /* with that wait; 0: not known */
} moe_worker_estimate;

/* Told of each worker: what moe_engine_get_worker() says of it in a model of so many layers, and
 * experts a layer. */
typedef void (*moe_worker_fn)(const moe_worker_info *info, const uint8_t *experts, uint32_t n_layer,
                              uint32_t n_expert, void *user);

/* Connects to options->workers, sends each some rows, and estimates the speed of decoding with
 * them. plan and rates: of this engine, as for moe_plan_speed(). Experts are drawn as equally
 * likely, and found in memory as often as the plan expects. tell may be NULL. Loads nothing. */
MOE_API int moe_plan_workers(const moe_engine_options *options, const moe_memory_plan *plan,
                             const moe_speed_rates *rates, moe_worker_estimate *estimate,
                             moe_worker_fn tell, void *user, moe_error *err);

#ifdef __cplusplus
}
#endif
#endif
