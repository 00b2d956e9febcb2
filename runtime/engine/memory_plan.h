/* SPDX-License-Identifier: MIT */
/* Shares the memory budget out before anything is allocated: what must be there first, the rest to
 * expert slots. */
#ifndef MOE_ENGINE_MEMORY_PLAN_H
#define MOE_ENGINE_MEMORY_PLAN_H

#include <moe/moe.h>

#include "runtime/device/device.h"
#include "runtime/model/tensor_map.h"

typedef struct moe_plan_input {
    const moe_engine_options *options;
    const moe_model_config *config;
    const moe_tensor_map *map;
    uint64_t process_bytes;   /* resident set now */
    uint64_t available_bytes; /* what the machine and the cgroup leave */
    uint64_t resident_bytes;
    uint64_t kv_bytes_per_page;
    uint64_t scratch_bytes;
    uint64_t full_slots_bytes; /* for every expert */
    uint64_t slot_bytes;       /* of the largest expert */
    uint32_t context;
} moe_plan_input;

/* MOE_ERR_BUDGET when the budget is below the floor; the plan is filled all the same. */
int moe_memory_plan_make(const moe_plan_input *input, moe_memory_plan *plan, moe_error *err);

#endif
