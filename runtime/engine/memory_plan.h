/* SPDX-License-Identifier: MIT */
/* Divides the memory budget before anything is allocated: first what is required, then expert
 * slots with the rest. */
#ifndef MOE_ENGINE_MEMORY_PLAN_H
#define MOE_ENGINE_MEMORY_PLAN_H

#include <moe/moe.h>

#include "offload/expert_store.h"
#include "runtime/device/cards.h"
#include "runtime/device/device.h"
#include "runtime/model/tensor_map.h"
#include "runtime/pass/kv_cache.h"

typedef struct moe_plan_input {
    const moe_engine_options *options;
    const moe_model_config *config;
    const moe_tensor_map *map;
    uint64_t process_bytes;   /* resident set now */
    uint64_t available_bytes; /* what the machine and the cgroup leave */
    uint64_t limit_bytes;     /* what the machine and the cgroup have in all; UINT64_MAX: not
                               * known */
    uint64_t resident_bytes;
    moe_kv_sizes kv;
    uint64_t state_bytes;          /* of one session: states of recurrent layers */
    uint64_t session_bytes;        /* RAM of one session with a full context, without KV cache */
    uint64_t row_cache_bytes;      /* part of scratch_bytes: rows of a table that stays on disk */
    uint64_t scratch_bytes;        /* on the host */
    uint64_t device_scratch_bytes; /* on the device (on the CPU: in RAM) */
    moe_expert_slot_sizes slots;
    moe_expert_slot_sizes low_bit;     /* of low-bit copies; 0: there are none */
    uint64_t device_memory;            /* the device's own memory; 0: it uses the host's */
    uint32_t n_cards;                  /* of the device; 0: 1 */
    uint64_t card_room[MOE_MAX_CARDS]; /* of cards after the first: bytes that slots may take */
    bool simulated;                    /* the device's memory is simulated by host memory */
    uint32_t context;
} moe_plan_input;

/* Makes the plan. Fails with MOE_ERR_BUDGET if the budget is too small even for the required
 * parts; also fills in the plan then. */
int moe_memory_plan_make(const moe_plan_input *input, moe_memory_plan *plan, moe_error *err);

#endif
