/* SPDX-License-Identifier: MIT */
/* Models the cost of passes in bytes instead of measured time, so that a run has the same costs,
 * and therefore the same draft lengths, on every machine. A pass reads the resident weights, and
 * each distinct expert that it uses, once from memory. An expert that a cache of the given size
 * would not hold (miss_model.h) is also read from the tier below, where each byte costs a fixed
 * multiple. */
#ifndef MOE_DRAFT_BYTE_COST_H
#define MOE_DRAFT_BYTE_COST_H

#include "runtime/model/tensor_map.h"

/* The cost of a byte from the tier below, in bytes read from memory. This is about the ratio of
 * the speeds of RAM and NVMe, and of HBM and PCIe. */
#define MOE_BYTE_COST_MISS 16.0
/* The cost of computing one more row, as a share of the cost of reading the weights that the row
 * uses. */
#define MOE_BYTE_COST_ROW 0.05

typedef struct moe_byte_cost {
    double resident_bytes;
    double expert_bytes; /* bytes of one expert, on average */
    double active_bytes; /* bytes of the weights that one token uses */
    /* Bytes of a drafting layer's weights: those that every row uses, and those that only rows
     * with logits use. */
    double head_layer_bytes, head_output_bytes;
} moe_byte_cost;

/* How much a drafting layer computed: passes and rows. */
typedef struct moe_head_work {
    uint32_t n_passes, n_rows;
    uint32_t n_logit_passes, n_logit_rows; /* passes and rows that computed logits */
} moe_head_work;

void moe_byte_cost_init(moe_byte_cost *cost, const moe_tensor_map *map, uint32_t n_expert_used);
/* Returns the cost of n_passes passes with n_rows rows together that use n_used distinct experts.
 * Does not include missing experts. */
double moe_byte_cost_passes(const moe_byte_cost *cost, uint64_t n_passes, uint64_t n_rows,
                            uint64_t n_used);
/* Returns the cost of one draft pass over n_rows rows that uses n_used distinct experts. n_used =
 * 0: the number is unknown, and the experts of one token are assumed. */
double moe_byte_cost_draft(const moe_byte_cost *cost, uint32_t n_rows, uint64_t n_used);
double moe_byte_cost_head(const moe_byte_cost *cost, const moe_head_work *work);
/* Returns the additional cost of one missing expert. */
double moe_byte_cost_miss(const moe_byte_cost *cost);

#endif
