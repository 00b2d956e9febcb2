/* SPDX-License-Identifier: MIT */
/* Where an engine's memory goes: filled by moe_plan_memory() and moe_engine_get_info() of moe.h,
 * which includes this header. It declares no functions. */
#ifndef MOE_PLAN_H
#define MOE_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where memory goes, in bytes. If the plan exceeds the budget, opening and planning fail before
 * anything is allocated. */
typedef struct moe_memory_plan {
    size_t struct_size;     /* set by the program: sizeof(moe_memory_plan) */
    uint64_t budget;        /* the limit, of RAM */
    bool budget_is_default; /* the options gave none: derived from machine and cgroup */
    uint64_t process;       /* what the process takes now, without the following */
    uint64_t resident;      /* weights that are not experts */
    uint64_t kv_cache;      /* of one session with a full context */
    uint64_t scratch;       /* of one pass, and of reading */
    /* process, resident, kv_cache, scratch and the fewest expert slots that work. A later plan's
     * floor may be higher, since `process` grows with what the program allocates: leave a few MiB
     * above it. */
    uint64_t floor;
    uint64_t expert_cache; /* expert slots */
    uint64_t expert_slots; /* experts that they hold */
    uint64_t experts;      /* experts that the model has */
    uint64_t expert_bytes; /* of all of them */
    uint64_t total;        /* process + resident + kv_cache + scratch + expert_cache + .. */
    uint32_t context;
    /* If the device has its own memory, resident, kv_cache and expert_cache are there; budget,
     * floor and total are those of RAM: process + scratch + host_cache + device_in_host. Otherwise
     * the fields from here to device_in_host are 0. */
    bool has_device_memory;
    uint64_t device_budget;
    uint64_t device_scratch; /* of one pass */
    uint64_t device_floor;
    uint64_t
        device_total;    /* resident + kv_cache + device_scratch + expert_cache; the first card's */
    uint64_t host_cache; /* expert slots in RAM */
    uint64_t host_slots; /* experts that they hold */
    /* device_total of a simulated device, since its memory is this machine's RAM. Otherwise 0. */
    uint64_t device_in_host;
    /* The expected share of a token's experts that are in the device's slots. With a calibration:
     * the share if its hottest experts are kept, on a text like the calibration's (policies that
     * follow the text do better). Without one: the share of the experts that fit, which even
     * routing without locality reaches. */
    double expected_hit_rate;
    bool hit_rate_is_calibrated;
    double expected_memory_hit_rate; /* likewise, share in the slots or in RAM: not read from
                                      * disk */
    uint64_t token_expert_bytes;     /* of the experts that one token uses, all layers */
    /* Sessions. The plan has room for one with a full context; more of them take memory from the
     * expert slots as they grow, the coldest first, and give it back when they end. session_state
     * is part of `total`, and of `floor`; always RAM. */
    uint64_t session_state;  /* of one session: logits, sampler, tokens, drafts */
    uint64_t sessions;       /* as many as the options ask for, all with a full context */
    uint64_t sessions_bytes; /* what these sessions hold: KV caches and states */
    uint64_t sessions_slots; /* experts that the device's slots hold beside them */
    uint64_t available;      /* of RAM: the most that a budget may be, by machine and groups */
    uint64_t layer_states;   /* part of kv_cache: the state of recurrent layers of one session */
    uint64_t context_most;   /* what `context` would be with enough memory */
    /* Part of kv_cache: pages of layers with a window, which are freed behind it. It does not grow
     * with the context. */
    uint64_t kv_windowed;
    uint64_t program;           /* part of process: what the program will take (program_memory) */
    uint64_t experts_in_memory; /* distinct experts that all slots hold, of the device and of RAM */
    uint64_t low_bit_cache;     /* slots of low-bit copies, part of total (lossy_modes.h) */
    uint64_t low_bit_slots;     /* copies that they hold */
    uint64_t cards;             /* GPUs of the device; without memory of its own 0 */
    uint64_t card_cache[8];     /* of expert_cache, on each card */
    uint64_t panel_rows;        /* most rows of a panel (options.panel); 0: no panels */
    uint64_t row_cache;         /* part of scratch: rows of a table that stays on disk */
    uint64_t row_table;         /* bytes of that table on disk; 0: the model has none */
    uint64_t prefill_chunk;     /* most rows of a pass (options.prefill_chunk) */
    uint64_t reserved[5];       /* 0 */
} moe_memory_plan;

#endif
