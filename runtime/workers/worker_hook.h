/* SPDX-License-Identifier: MIT */
/* Lets workers compute experts that are not in the device's memory. Before a layer's plan is made,
 * each such expert that a worker has gets a place: this engine or that worker, whichever will be
 * done sooner by the costs measured so far. The hook sends the rows before this engine begins with
 * its own experts, and takes the outputs back before the layer's sum. The order of the sum does not
 * depend on who computed an output, so the bits are the same. This engine computes what a worker
 * does not deliver in time. */
#ifndef MOE_WORKERS_WORKER_HOOK_H
#define MOE_WORKERS_WORKER_HOOK_H

#include "runtime/pass/pass_hooks.h"
#include "runtime/wire/wire.h"
#include "runtime/workers/worker_state.h"

typedef struct moe_workers_parts {
    moe_runner *runner;           /* complete; must outlive the workers, as must the map */
    const moe_tensor_map *map;    /* of the model */
    moe_wire *wire;               /* connects only; moe_workers owns it, also on failure */
    uint64_t fingerprint;         /* of the model */
    const char *const *addresses; /* [n_addresses] "host:port" */
    size_t n_addresses;
    const uint8_t *key; /* [key_bytes], copied */
    size_t key_bytes;
    bool all;            /* workers compute every missing expert that they have, whatever it
                          * costs */
    size_t rebalance;    /* passes between two divisions of the experts; 0: none */
    uint64_t timeout_ns; /* 0: 10 s */
    uint64_t pause_ns;   /* before a worker that is away is tried again; 0: 1 s */
    moe_log_fn log;
    void *user;
} moe_workers_parts;

/* Returns the bytes that the arrays and messages take, for passes of up to max_rows rows. */
uint64_t moe_workers_bytes(const moe_model_config *config, uint32_t max_rows);
/* Connects, and adds the hook to the runner. */
int moe_workers_open(moe_workers **out, const moe_workers_parts *parts, moe_error *err);
void moe_workers_close(moe_workers **workers);
void moe_workers_get_stats(const moe_workers *workers, moe_workers_stats *stats);

#endif
