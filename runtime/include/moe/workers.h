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
 * Both ends have the model's file. The messages have checksums, and each end shows the other that
 * it knows the key; they are not encrypted. Errors and ownership are as in moe.h.
 *
 * Threads (the groups are explained in moe.h):
 *   free:    moe_worker_options_init_sized, moe_worker_options_init
 *   in turn: moe_worker_serve */
#ifndef MOE_WORKERS_H
#define MOE_WORKERS_H

#include <moe/moe.h>

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

#ifdef __cplusplus
}
#endif
#endif
