/* SPDX-License-Identifier: MIT */
/* Models the cost of passes in bytes: the same run has the same costs, and so the same draft
 * lengths, on every machine (algorithms, 2.9). A pass reads the resident weights and each distinct
 * expert once from memory. An expert that a cache of the given size would miss (miss_model.h) is
 * also read from the tier below, at a fixed multiple of the cost. */
#ifndef MOE_DRAFT_BYTE_COST_H
#define MOE_DRAFT_BYTE_COST_H

#include "runtime/model/tensor_map.h"

/* A byte from the tier below costs as much as this many from memory: about the ratio of NVMe to
 * RAM, and of PCIe to HBM. */
#define MOE_BYTE_COST_MISS 16.0
/* Computing one more row costs this share of reading the weights it uses. */
#define MOE_BYTE_COST_ROW 0.05

typedef struct moe_byte_cost {
    double resident_bytes;
    double expert_bytes; /* of one expert, on average */
    double active_bytes; /* that one token uses */
    /* Bytes of a drafting layer: those that every row uses, and those that rows with logits use in
     * addition. */
    double head_layer_bytes, head_output_bytes;
} moe_byte_cost;

/* The work that a drafting layer did. */
typedef struct moe_head_work {
    uint32_t n_passes, n_rows;
    uint32_t n_logit_passes, n_logit_rows; /* those of them with logits */
} moe_head_work;

void moe_byte_cost_init(moe_byte_cost *cost, const moe_tensor_map *map, uint32_t n_expert_used);
/* Cost of n_passes that have n_rows in all and use this many distinct experts; without misses. */
double moe_byte_cost_passes(const moe_byte_cost *cost, uint64_t n_passes, uint64_t n_rows,
                            uint64_t n_used);
/* Cost of one draft pass over n_rows rows that uses this many distinct experts; 0: not known,
 * counts those of one token. */
double moe_byte_cost_draft(const moe_byte_cost *cost, uint32_t n_rows, uint64_t n_used);
double moe_byte_cost_head(const moe_byte_cost *cost, const moe_head_work *work);
/* Cost of one missing expert. */
double moe_byte_cost_miss(const moe_byte_cost *cost);

#endif
