/* SPDX-License-Identifier: MIT */
/* Workers in the blocks of a panel. */
#ifndef MOE_WORKERS_WORKER_BLOCK_H
#define MOE_WORKERS_WORKER_BLOCK_H

#include "runtime/workers/worker_state.h"

extern const moe_block_stages moe_worker_block_stages;
int moe_worker_block_open(worker_block *block, const moe_model_config *config, uint32_t max_rows,
                          moe_error *err);
void moe_worker_block_free(worker_block *block);
uint64_t moe_worker_block_bytes(const moe_model_config *config, uint32_t max_rows);

#endif
