/* SPDX-License-Identifier: MIT */
#include "runtime/engine/memory_plan.h"

#include <math.h>

#include "cpu/kernels/vector_ops.h"
#include "runtime/base/error.h"

/* Of the free memory, this part is left to the rest of the machine when no budget is given; and of
 * a control group's limit, so that a small one also holds the kernel's share (page tables, stacks,
 * a little page cache). */
#define HEADROOM_DIVISOR 8
#define MIB              1048576.0

static uint64_t kv_bytes(const moe_plan_input *in)
{
    return (((uint64_t)in->context + MOE_KV_PAGE - 1) / MOE_KV_PAGE) * in->kv_bytes_per_page;
}

/* The experts of one token in one layer: fewer slots would take waves to decode. */
static uint64_t floor_of_slots(const moe_plan_input *in, uint64_t slot_bytes, uint64_t full_bytes)
{
    uint64_t least = (uint64_t)in->config->n_expert_used * slot_bytes;
    return least < full_bytes ? least : full_bytes;
}

static uint64_t floor_slots_bytes(const moe_plan_input *in)
{
    return floor_of_slots(in, in->slots.slot_bytes, in->slots.full_bytes);
}

static uint64_t wanted_slots_bytes(const moe_plan_input *in)
{
    const moe_engine_options *o = in->options;
    if (o->expert_cache != 0) {
        return o->expert_cache;
    }
    if (o->expert_cache_share != 0.0) {
        return (uint64_t)ceil(o->expert_cache_share * (double)in->slots.full_bytes);
    }
    return in->slots.full_bytes;
}

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Experts that slots of so many bytes hold. */
static uint64_t n_slots(const moe_memory_plan *plan, uint64_t bytes, uint64_t full_bytes)
{
    return (uint64_t)((double)bytes / (double)full_bytes * (double)plan->experts);
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

static int refuse_device(const moe_plan_input *in, const moe_memory_plan *plan, moe_error *err)
{
    return moe_fail(
        err, MOE_ERR_BUDGET,
        "device memory of %.1f MiB is below the least that works, %.1f MiB (weights %.1f, KV cache "
        "for %u tokens %.1f, scratch %.1f, experts of one layer %.1f); %s",
        (double)plan->device_budget / MIB, (double)plan->device_floor / MIB,
        (double)plan->resident / MIB, plan->context, (double)plan->kv_cache / MIB,
        (double)plan->device_scratch / MIB, (double)floor_slots_bytes(in) / MIB,
        plan->kv_cache > plan->device_floor / 4 ? "a smaller context (-c) needs less"
                                                : "give it more (--device-memory, memory=)");
}

static int refuse_host(const moe_plan_input *in, const moe_memory_plan *plan, moe_error *err)
{
    uint64_t slots = floor_of_slots(in, in->slots.host_slot_bytes, in->slots.host_full_bytes);
    return moe_fail(err, MOE_ERR_BUDGET,
                    "%s %.0f MiB beside the device is below the least that works, %.0f MiB "
                    "(process %.0f, scratch %.0f, experts of one layer %.0f%s); %s",
                    plan->budget_is_default ? "free memory of" : "a memory budget of",
                    (double)plan->budget / MIB, (double)plan->floor / MIB,
                    (double)plan->process / MIB, (double)plan->scratch / MIB, (double)slots / MIB,
                    in->simulated ? ", and what the simulated device holds, which is host memory"
                                  : "",
                    plan->budget_is_default ? "free some memory" : "raise --host-memory");
}

/* What is left of a budget becomes the device's expert slots. */
static int share_out_slots(const moe_plan_input *in, uint64_t budget, uint64_t fixed,
                           moe_memory_plan *plan, moe_error *err)
{
    uint64_t left = budget - fixed;
    uint64_t wanted = wanted_slots_bytes(in);
    if (wanted > left && wanted != in->slots.full_bytes) {
        return moe_fail(err, MOE_ERR_BUDGET,
                        "an expert cache of %.0f MiB does not fit: the memory budget of %.0f MiB "
                        "leaves %.0f MiB for it",
                        (double)wanted / MIB, (double)budget / MIB, (double)left / MIB);
    }
    if (wanted < floor_slots_bytes(in)) {
        uint64_t least = floor_slots_bytes(in);
        return moe_fail(err, MOE_ERR_BUDGET,
                        "an expert cache of %.1f MiB is below the least that works, the experts "
                        "that a token uses in one layer: %.1f MiB, %.1f %% of all; raise "
                        "--expert-cache",
                        (double)wanted / MIB, (double)least / MIB,
                        ceil(1000.0 * (double)least / (double)in->slots.full_bytes) / 10.0);
    }
    plan->expert_cache = min_u64(min_u64(wanted, left), in->slots.full_bytes);
    plan->expert_slots = n_slots(plan, plan->expert_cache, in->slots.full_bytes);
    return MOE_OK;
}

static int plan_device(const moe_plan_input *in, moe_memory_plan *plan, moe_error *err)
{
    uint64_t asked = in->options->device_memory;
    if (asked > in->device_memory) {
        return moe_fail(err, MOE_ERR_BUDGET,
                        "a device memory of %.1f MiB is more than the device has, %.1f MiB; lower "
                        "--device-memory",
                        (double)asked / MIB, (double)in->device_memory / MIB);
    }
    plan->has_device_memory = true;
    plan->device_budget = asked != 0 ? asked : in->device_memory;
    plan->device_scratch = in->device_scratch_bytes;
    uint64_t fixed = plan->resident + plan->kv_cache + plan->device_scratch;
    plan->device_floor = fixed + floor_slots_bytes(in);
    plan->device_total = plan->device_floor;
    if (plan->device_budget < plan->device_floor) {
        return refuse_device(in, plan, err);
    }
    int status = share_out_slots(in, plan->device_budget, fixed, plan, err);
    plan->device_total = fixed + plan->expert_cache;
    return status;
}

/* RAM beside a device with memory of its own. What a simulated device holds comes out of it too. */
static int plan_host(const moe_plan_input *in, moe_memory_plan *plan, moe_error *err)
{
    uint64_t full = in->slots.host_full_bytes;
    plan->device_in_host = in->simulated ? plan->device_total : 0;
    uint64_t fixed = plan->process + plan->scratch + plan->device_in_host;
    plan->floor = fixed + floor_of_slots(in, in->slots.host_slot_bytes, full);
    plan->total = plan->floor;
    if (plan->budget < plan->floor) {
        return refuse_host(in, plan, err);
    }
    plan->host_cache = min_u64(plan->budget - fixed, full);
    plan->host_slots = n_slots(plan, plan->host_cache, full);
    plan->total = fixed + plan->host_cache;
    return MOE_OK;
}

static int plan_one_memory(const moe_plan_input *in, moe_memory_plan *plan, moe_error *err)
{
    plan->scratch += in->device_scratch_bytes;
    uint64_t fixed = plan->process + plan->resident + plan->kv_cache + plan->scratch;
    plan->floor = fixed + floor_slots_bytes(in);
    if (plan->budget < plan->floor) {
        plan->total = plan->floor;
        return refuse(in, plan, err);
    }
    int status = share_out_slots(in, plan->budget, fixed, plan, err);
    plan->total = status == MOE_OK ? fixed + plan->expert_cache : 0;
    return status;
}

/* What the process has and what is free, less an eighth; but a process may hold pages that others
 * pay for (of libraries), and must not take those for room that a control group's limit lacks. */
static uint64_t default_budget(const moe_plan_input *in)
{
    uint64_t budget =
        in->process_bytes + in->available_bytes - in->available_bytes / HEADROOM_DIVISOR;
    uint64_t most = in->limit_bytes - in->limit_bytes / HEADROOM_DIVISOR;
    return min_u64(budget, most);
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
    if (in->device_memory == 0 && o->device_memory != 0) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "the device has no memory of its own, so --device-memory cannot act; use "
                        "--host-memory");
    }
    int status = in->device_memory != 0 ? plan_device(in, plan, err) : MOE_OK;
    if (plan->budget_is_default) {
        plan->budget = default_budget(in);
    }
    if (status != MOE_OK) {
        return status;
    }
    return in->device_memory != 0 ? plan_host(in, plan, err) : plan_one_memory(in, plan, err);
}
