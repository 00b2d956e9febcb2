/* SPDX-License-Identifier: MIT */
#include "runtime/draft/byte_cost.h"

void moe_byte_cost_init(moe_byte_cost *cost, const moe_tensor_map *map, uint32_t n_expert_used)
{
    uint32_t n_moe_layers = 0;
    for (uint32_t l = 0; l < map->n_layer; l++) {
        n_moe_layers += map->layers[l].experts != NULL;
    }
    cost->resident_bytes = (double)map->resident_bytes;
    cost->expert_bytes = (double)map->expert_bytes / ((double)n_moe_layers * map->n_expert);
    cost->active_bytes = cost->resident_bytes + n_moe_layers * n_expert_used * cost->expert_bytes;
}

double moe_byte_cost_passes(const moe_byte_cost *cost, uint64_t n_passes, uint64_t n_rows,
                            uint64_t n_used)
{
    return (double)n_passes * cost->resident_bytes + (double)n_used * cost->expert_bytes +
           MOE_BYTE_COST_ROW * (double)n_rows * cost->active_bytes;
}

double moe_byte_cost_draft(const moe_byte_cost *cost, uint32_t n_rows, uint64_t n_used)
{
    return n_used > 0 ? moe_byte_cost_passes(cost, 1, n_rows, n_used)
                      : (1 + MOE_BYTE_COST_ROW * n_rows) * cost->active_bytes;
}

double moe_byte_cost_head(const moe_byte_cost *cost, const moe_head_work *w)
{
    return (w->n_passes + MOE_BYTE_COST_ROW * w->n_rows) * cost->head_layer_bytes +
           (w->n_logit_passes + MOE_BYTE_COST_ROW * w->n_logit_rows) * cost->head_output_bytes;
}

double moe_byte_cost_miss(const moe_byte_cost *cost)
{
    return MOE_BYTE_COST_MISS * cost->expert_bytes;
}
