/* SPDX-License-Identifier: MIT */
/* What passes cost in bytes, modelled: the same run has the same costs on every machine, and so the
 * same draft lengths (algorithms, 2.9). A pass reads the resident weights and each distinct expert
 * once from memory; an expert that a cache of so many slots would miss is read from below as well,
 * which is dearer by a fixed factor. The cache of the model is an LRU of its own, touched by
 * verification in order, because hits of the real one depend on when prefetches arrive. */
#ifndef MOE_ENGINE_BYTE_COST_H
#define MOE_ENGINE_BYTE_COST_H

#include "cache/expert_cache.h"
#include "offload/expert_store.h"
#include "runtime/model/tensor_map.h"

/* A byte from below costs this many from memory: about that of NVMe to RAM, and of PCIe to HBM. */
#define MOE_BYTE_COST_MISS 16.0
/* Computing one more row costs this share of reading the weights it uses. */
#define MOE_BYTE_COST_ROW 0.05

typedef struct moe_byte_cost moe_byte_cost;

int moe_byte_cost_open(moe_byte_cost **out, const moe_tensor_map *map, uint32_t n_expert_used,
                       uint64_t n_slots, moe_error *err);
void moe_byte_cost_close(moe_byte_cost **cost);
/* A layer of a pass that counts. */
void moe_byte_cost_layer(moe_byte_cost *cost, const moe_layer_request *request);
/* The cost of the pass whose layers have been told since the last call; *fetch: of its misses. */
double moe_byte_cost_take(moe_byte_cost *cost, uint32_t n_rows, double *fetch);
/* One draft pass over n_rows rows. */
double moe_byte_cost_draft(const moe_byte_cost *cost, uint32_t n_rows);
/* One missing expert. */
double moe_byte_cost_miss(const moe_byte_cost *cost);

#endif
