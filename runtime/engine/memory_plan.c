/* SPDX-License-Identifier: MIT */
#include "runtime/engine/memory_plan.h"

#include <math.h>

#include "cpu/kernels/vector_ops.h"
#include "runtime/base/error.h"

/* Of the free memory, this part is left to the rest of the machine when no budget is given. */
#define HEADROOM_DIVISOR 8
#define MIB              1048576.0

static uint64_t kv_bytes(const moe_plan_input *in)
{
    return (((uint64_t)in->context + MOE_KV_PAGE - 1) / MOE_KV_PAGE) * in->kv_bytes_per_page;
}

/* The experts of one token in one layer: fewer slots would take waves to decode. */
static uint64_t floor_slots_bytes(const moe_plan_input *in)
{
    uint64_t least = (uint64_t)in->config->n_expert_used * in->slot_bytes;
    return least < in->full_slots_bytes ? least : in->full_slots_bytes;
}

static uint64_t wanted_slots_bytes(const moe_plan_input *in)
{
    const moe_engine_options *o = in->options;
    if (o->expert_cache != 0) {
        return o->expert_cache;
    }
    if (o->expert_cache_share != 0.0) {
        return (uint64_t)ceil(o->expert_cache_share * (double)in->full_slots_bytes);
    }
    return in->full_slots_bytes;
}

static int refuse(const moe_plan_input *in, const moe_memory_plan *plan, moe_error *err)
{
    bool asked = !plan->budget_is_default;
    return moe_fail(
        err, MOE_ERR_BUDGET,
        "%s %.0f MiB is below the least that works, %.0f MiB (process %.0f, weights "
        "%.0f, KV cache for %u tokens %.0f, scratch %.0f, experts of one layer %.0f); %s",
        asked ? "a memory budget of" : "free memory of", (double)plan->budget / MIB,
        (double)plan->floor / MIB, (double)plan->process / MIB, (double)plan->resident / MIB,
        plan->context, (double)plan->kv_cache / MIB, (double)plan->scratch / MIB,
        (double)floor_slots_bytes(in) / MIB,
        plan->kv_cache > plan->floor / 4 ? "a smaller context (-c) needs less"
        : asked                          ? "raise --host-memory"
                                         : "free some memory");
}

int moe_memory_plan_make(const moe_plan_input *in, moe_memory_plan *plan, moe_error *err)
{
    const moe_engine_options *o = in->options;
    *plan = (moe_memory_plan){
        .budget = o->host_memory,
        .budget_is_default = o->host_memory == 0,
        .process = in->process_bytes,
        .resident = in->resident_bytes,
        .kv_cache = kv_bytes(in),
        .scratch = in->scratch_bytes,
        .expert_bytes = in->map->expert_bytes,
        .context = in->context,
    };
    for (uint32_t l = 0; l < in->config->n_layer; l++) {
        plan->experts += moe_layer_has_experts(in->config, l) ? in->config->n_expert : 0;
    }
    if (plan->budget_is_default) {
        plan->budget =
            in->process_bytes + in->available_bytes - in->available_bytes / HEADROOM_DIVISOR;
    }
    uint64_t fixed = plan->process + plan->resident + plan->kv_cache + plan->scratch;
    plan->floor = fixed + floor_slots_bytes(in);
    if (plan->budget < plan->floor) {
        plan->total = plan->floor;
        return refuse(in, plan, err);
    }
    uint64_t left = plan->budget - fixed;
    uint64_t wanted = wanted_slots_bytes(in);
    if (wanted > left && wanted != in->full_slots_bytes) {
        return moe_fail(err, MOE_ERR_BUDGET,
                        "an expert cache of %.0f MiB does not fit: the memory budget of %.0f MiB "
                        "leaves %.0f MiB for it",
                        (double)wanted / MIB, (double)plan->budget / MIB, (double)left / MIB);
    }
    if (wanted < floor_slots_bytes(in)) {
        return moe_fail(err, MOE_ERR_BUDGET,
                        "an expert cache of %.1f MiB is below the experts of one layer, %.1f MiB; "
                        "raise --expert-cache",
                        (double)wanted / MIB, (double)floor_slots_bytes(in) / MIB);
    }
    plan->expert_cache = wanted < left ? wanted : left;
    plan->expert_cache =
        plan->expert_cache < in->full_slots_bytes ? plan->expert_cache : in->full_slots_bytes;
    plan->expert_slots = (uint64_t)((double)plan->expert_cache / (double)in->full_slots_bytes *
                                    (double)plan->experts);
    plan->total = fixed + plan->expert_cache;
    return MOE_OK;
}
