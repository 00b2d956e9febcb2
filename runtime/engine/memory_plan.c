/* SPDX-License-Identifier: MIT */
#include "runtime/engine/memory_plan.h"

#include <math.h>
#include <stdlib.h>

#include <moe/lossy_modes.h>

#include "cpu/kernels/vector_ops.h"
#include "runtime/base/error.h"
#include "offload/card_layers.h"
#include "offload/memory_border.h"
#include "runtime/base/alloc.h"

/* Without a budget in the options, 1 / HEADROOM_DIVISOR of the free memory is left to the rest of
 * the machine. The same part of a control group's limit is left free, so that even a small group
 * has room for the kernel's share (page tables, stacks, a little page cache). */
#define HEADROOM_DIVISOR 8
#define MIB              1048576.0
/* The most bytes of a control group's limit that are left free. */
#define MOST_HEADROOM (UINT64_C(64) << 20)
/* With page-locked slots, memory is set aside for this many sessions. */
#define MANY_SESSIONS 16u
/* This many host slots are enough to keep reads and copies busy. */
#define LEAST_STAGING_SLOTS 32u

static uint64_t kv_bytes(const moe_plan_input *in)
{
    return moe_kv_session_bytes(&in->kv, in->context, false) + in->state_bytes;
}

/* Returns the bytes of the fewest slots that a cache may have: room for the experts of one token
 * in one layer. With fewer slots, decoding would need several waves. */
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

/* Returns how many experts fit into slots of this many bytes together. */
static uint64_t n_slots(const moe_memory_plan *plan, uint64_t bytes, uint64_t full_bytes)
{
    const double share = (double)bytes / (double)full_bytes;
    return (uint64_t)(share * (double)plan->experts + 1e-6); /* 1e-6: rounding must not lose a
                                                              * slot */
}

/* Returns a text for the error: which part fills the budget, and which option would reduce it. */
static const char *remedy(const moe_memory_plan *plan, uint64_t scratch, const char *raise)
{
    bool kv = plan->kv_cache > plan->floor / 4;
    bool chunk = scratch > plan->floor / 4;
    return kv && chunk ? "a smaller context and a smaller prefill chunk need less"
           : kv        ? "a smaller context needs less"
           : chunk     ? "a smaller prefill chunk needs less scratch"
                       : raise;
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
        plan->context, (double)(plan->kv_cache + plan->session_state) / MIB,
        (double)plan->scratch / MIB, (double)floor_slots_bytes(in) / MIB,
        remedy(plan, plan->scratch, asked ? "raise the memory budget" : "free some memory"));
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
        plan->kv_cache > plan->device_floor / 4         ? "a smaller context needs less"
        : plan->device_scratch > plan->device_floor / 4 ? "a smaller prefill chunk needs less"
                                                        : "raise the device memory");
}

static int refuse_host(const moe_plan_input *in, const moe_memory_plan *plan, moe_error *err)
{
    uint64_t slots = floor_of_slots(in, in->slots.host_slot_bytes, in->slots.host_full_bytes);
    bool asked = !plan->budget_is_default;
    return moe_fail(
        err, MOE_ERR_BUDGET,
        "%s %.0f MiB beside the device is below the least that works, %.0f MiB "
        "(process %.0f, a session %.1f, scratch %.0f, experts of one layer %.0f%s); %s",
        asked ? "a memory budget of" : "free memory of", (double)plan->budget / MIB,
        (double)plan->floor / MIB, (double)plan->process / MIB, (double)plan->session_state / MIB,
        (double)plan->scratch / MIB, (double)slots / MIB,
        in->simulated ? ", and what the simulated device holds, which is host memory" : "",
        plan->scratch > plan->floor / 4 ? "a smaller prefill chunk needs less scratch"
        : asked                         ? "raise the memory budget"
                                        : "free some memory");
}

/* Gives low-bit copies their share of the memory for experts. */
static int share_with_copies(const moe_plan_input *in, moe_memory_plan *plan, moe_error *err)
{
    const moe_expert_slot_sizes *sizes = &in->low_bit;
    uint64_t all = plan->expert_cache;
    if (all == in->slots.full_bytes) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "options.lossy.low_bit cannot act: all experts fit in memory, so none is "
                        "ever missing; leave it out, or give less memory "
                        "(options.expert_cache_share)");
    }
    uint64_t share = (uint64_t)(in->options->lossy->low_bit_share * (double)all);
    plan->low_bit_cache = min_u64(share, sizes->full_bytes);
    if (sizes->n_classes == 1) {
        plan->low_bit_cache -= plan->low_bit_cache % sizes->slot_bytes;
    }
    plan->low_bit_slots = n_slots(plan, plan->low_bit_cache, sizes->full_bytes);
    plan->expert_cache = all - plan->low_bit_cache;
    uint64_t least = floor_of_slots(in, sizes->slot_bytes, sizes->full_bytes);
    if (plan->low_bit_cache < least || plan->expert_cache < floor_slots_bytes(in)) {
        return moe_fail(err, MOE_ERR_BUDGET,
                        "%.1f MiB for experts and their low-bit copies is too little: what a token "
                        "uses in one layer takes %.1f MiB and %.1f MiB, and options.lossy."
                        "low_bit_share gives the copies %.1f MiB; raise the expert cache",
                        (double)all / MIB, (double)floor_slots_bytes(in) / MIB, (double)least / MIB,
                        (double)plan->low_bit_cache / MIB);
    }
    return MOE_OK;
}

/* Returns how many bytes a further card has for slots. A card that cannot hold the experts of one
 * token in a layer gets none. */
static uint64_t room_of_card(const moe_plan_input *in, uint32_t card)
{
    return in->card_room[card] >= floor_slots_bytes(in) ? in->card_room[card] : 0;
}

/* Gives the rest of the budget to the device's expert slots. */
static int share_out_slots(const moe_plan_input *in, uint64_t budget, uint64_t fixed,
                           moe_memory_plan *plan, moe_error *err)
{
    uint64_t left = budget - fixed;
    uint64_t wanted = wanted_slots_bytes(in);
    for (uint32_t k = 1; k < in->n_cards; k++) {
        left += room_of_card(in, k);
    }
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
                        "that a token uses in one layer: %.1f MiB, %.1f %% of all; raise it",
                        (double)wanted / MIB, (double)least / MIB,
                        ceil(1000.0 * (double)least / (double)in->slots.full_bytes) / 10.0);
    }
    plan->expert_cache = min_u64(min_u64(wanted, left), in->slots.full_bytes);
    MOE_TRY(in->low_bit.full_bytes > 0 ? share_with_copies(in, plan, err) : MOE_OK);
    if (in->slots.n_classes == 1) {
        plan->expert_cache -= plan->expert_cache % in->slots.slot_bytes;
    }
    plan->expert_slots = n_slots(plan, plan->expert_cache, in->slots.full_bytes);
    return MOE_OK;
}

/* Divides slots among the cards. The first card's memory is used first, because rows need not
 * travel to it. No card gets more than its layers need. */
static int share_out_cards(const moe_plan_input *in, uint64_t first, moe_memory_plan *plan,
                           moe_error *err)
{
    plan->cards = in->n_cards > 1 ? in->n_cards : 1;
    plan->card_cache[0] = min_u64(plan->expert_cache, first);
    if (plan->cards == 1) {
        return MOE_OK;
    }
    uint64_t left = plan->expert_cache - plan->card_cache[0];
    uint64_t held[MOE_MAX_CARDS];
    uint8_t *card_of_layer = moe_calloc(in->map->n_layer, sizeof *card_of_layer);
    if (card_of_layer == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for planning");
    }
    /* If there is room for all experts, each card gets whole layers, and may not use all of its
     * room. */
    bool all = plan->expert_cache == in->slots.full_bytes;
    for (uint32_t k = 1; k < plan->cards; k++) {
        uint64_t bytes = all ? room_of_card(in, k) : min_u64(left, room_of_card(in, k));
        plan->card_cache[k] = bytes >= floor_slots_bytes(in) ? bytes : 0;
        left -= min_u64(left, plan->card_cache[k]);
    }
    moe_card_layers(in->map, plan->card_cache, (uint32_t)plan->cards, card_of_layer, held);
    free(card_of_layer);
    plan->expert_cache = 0;
    for (uint32_t k = 0; k < plan->cards; k++) {
        plan->card_cache[k] = min_u64(plan->card_cache[k], held[k]);
        if (in->slots.n_classes == 1) {
            plan->card_cache[k] -= plan->card_cache[k] % in->slots.slot_bytes;
        }
        plan->expert_cache += plan->card_cache[k];
    }
    plan->expert_slots = n_slots(plan, plan->expert_cache, in->slots.full_bytes);
    return MOE_OK;
}

static int plan_device(const moe_plan_input *in, moe_memory_plan *plan, moe_error *err)
{
    uint64_t asked = in->options->device_memory;
    if (asked > in->device_memory) {
        return moe_fail(
            err, MOE_ERR_BUDGET,
            "a device memory of %.1f MiB is more than the device has, %.1f MiB; lower it",
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
    if (status == MOE_OK) {
        status = share_out_cards(in, plan->device_budget - fixed, plan, err);
    }
    plan->device_total = fixed + plan->card_cache[0];
    return status;
}

/* Page-locked slots cannot free memory in parts, so memory for further sessions is set aside. */
static uint64_t set_aside(const moe_plan_input *in, const moe_memory_plan *plan)
{
    uint64_t wanted = in->options->sessions;
    uint64_t more = plan->session_state * (MANY_SESSIONS - 1);
    uint64_t most = (plan->budget - plan->floor) / HEADROOM_DIVISOR;
    more = min_u64(more, most);
    uint64_t asked = wanted > 1 ? plan->session_state * (wanted - 1) : 0;
    return min_u64(asked > more ? asked : more, plan->budget - plan->floor);
}

/* Returns the most bytes that host slots may have. With all experts on the device, host slots only
 * hold experts on their way there, so as many are enough as reads and copies keep busy. But further
 * sessions can displace experts from the device, which then come back from the host; so if there
 * may be further sessions, the host tier keeps its full size. */
static uint64_t most_host_slots_bytes(const moe_plan_input *in, const moe_memory_plan *plan)
{
    uint64_t full = in->slots.host_full_bytes;
    uint64_t n = 4 * (uint64_t)in->config->n_expert_used;
    n = n > LEAST_STAGING_SLOTS ? n : LEAST_STAGING_SLOTS;
    bool all_on_device = plan->expert_slots == plan->experts && plan->sessions == 1;
    return all_on_device ? min_u64(full, n * in->slots.host_slot_bytes) : full;
}

/* Plans the RAM beside a device with its own memory. The memory of a simulated device is taken
 * from RAM, too. */
static int plan_host(const moe_plan_input *in, moe_memory_plan *plan, moe_error *err)
{
    uint64_t full = in->slots.host_full_bytes;
    plan->device_in_host = in->simulated ? plan->device_total : 0;
    uint64_t fixed = plan->process + plan->scratch + plan->device_in_host + plan->session_state;
    plan->floor = fixed + floor_of_slots(in, in->slots.host_slot_bytes, full);
    plan->total = plan->floor;
    if (plan->budget < plan->floor) {
        return refuse_host(in, plan, err);
    }
    fixed += in->simulated ? 0 : set_aside(in, plan);
    plan->host_cache = min_u64(plan->budget - fixed, most_host_slots_bytes(in, plan));
    plan->host_slots = n_slots(plan, plan->host_cache, full);
    plan->total = fixed + plan->host_cache;
    return MOE_OK;
}

static int plan_one_memory(const moe_plan_input *in, moe_memory_plan *plan, moe_error *err)
{
    plan->scratch += in->device_scratch_bytes;
    uint64_t fixed =
        plan->process + plan->resident + plan->kv_cache + plan->session_state + plan->scratch;
    plan->floor = fixed + floor_slots_bytes(in);
    if (plan->budget < plan->floor) {
        plan->total = plan->floor;
        return refuse(in, plan, err);
    }
    int status = share_out_slots(in, plan->budget, fixed, plan, err);
    plan->total = status == MOE_OK ? fixed + plan->expert_cache + plan->low_bit_cache : 0;
    return status;
}

/* Returns the default budget: the memory that the process has now plus the free memory, less an
 * eighth. Some pages of the process, such as those of libraries, may be charged to another control
 * group; they must not count as room within this group's limit. */
static uint64_t default_budget(const moe_plan_input *in)
{
    uint64_t budget =
        in->process_bytes + in->available_bytes - in->available_bytes / HEADROOM_DIVISOR;
    uint64_t most = in->limit_bytes - in->limit_bytes / HEADROOM_DIVISOR;
    return min_u64(budget, most);
}

/* ---- Sessions beyond the first ---- */

static int refuse_sessions(const moe_memory_plan *plan, const char *where, uint64_t needed,
                           uint64_t there, moe_error *err)
{
    return moe_fail(err, MOE_ERR_BUDGET,
                    "%llu sessions of %u tokens need %.1f MiB of %s beside the first, and %.1f MiB "
                    "can be had; fewer sessions or a smaller context need less",
                    (unsigned long long)plan->sessions, plan->context, (double)needed / MIB, where,
                    (double)there / MIB);
}

/* Returns the number of slots that no session can take. */
static uint64_t slots_that_stay(const moe_plan_input *in)
{
    return (uint64_t)in->config->n_expert_used *
           (in->slots.n_classes > 0 ? in->slots.n_classes : 1);
}

/* Returns the KV memory of further sessions. Those that wait may have their pages in files. */
static uint64_t more_kv(const moe_plan_input *in, const moe_memory_plan *plan)
{
    return in->options->park_folder != NULL ? 0 : plan->kv_cache;
}

static int sessions_in_one_memory(const moe_plan_input *in, moe_memory_plan *plan, moe_error *err)
{
    uint64_t needed = (plan->sessions - 1) * (more_kv(in, plan) + plan->session_state);
    uint64_t left = plan->budget - plan->total;
    uint64_t stays = slots_that_stay(in) * in->slots.slot_bytes;
    uint64_t spare = plan->expert_cache > stays ? plan->expert_cache - stays : 0;
    if (needed > left + spare) {
        return refuse_sessions(plan, "memory", needed, left + spare, err);
    }
    uint64_t taken = needed > left ? needed - left : 0;
    plan->sessions_slots = n_slots(plan, plan->expert_cache - taken, in->slots.full_bytes);
    return MOE_OK;
}

/* Returns how many slots' memory holds this many lent pages. */
static uint64_t slots_of_pages(const moe_plan_input *in, uint64_t page_bytes, uint64_t n_pages)
{
    uint64_t run = (page_bytes + in->slots.slot_bytes - 1) / in->slots.slot_bytes;
    uint64_t pages = run * in->slots.slot_bytes / page_bytes;
    return (n_pages + pages - 1) / pages * run;
}

/* Returns how many slots the further sessions borrow if this many bytes are free. */
static uint64_t slots_lent(const moe_plan_input *in, uint64_t n_sessions, uint64_t left)
{
    uint64_t slots = 0;
    for (uint32_t g = 0; g < in->kv.n_groups; g++) {
        uint64_t page = in->kv.page_bytes[g];
        uint64_t bytes = n_sessions * moe_kv_group_pages(&in->kv, g, in->context) * page;
        uint64_t within = min_u64(left, bytes);
        left -= within;
        slots += bytes > within ? slots_of_pages(in, page, (bytes - within) / page + 1) : 0;
    }
    return slots;
}

static int sessions_on_device(const moe_plan_input *in, moe_memory_plan *plan, moe_error *err)
{
    uint64_t needed = (plan->sessions - 1) * more_kv(in, plan);
    uint64_t left = moe_memory_border_device_left(plan) - plan->kv_cache;
    uint64_t taken = needed > left ? slots_lent(in, plan->sessions - 1, left) : 0;
    uint64_t near = n_slots(plan, plan->card_cache[0], in->slots.full_bytes);
    if (taken + slots_that_stay(in) > near && taken > 0) {
        uint64_t stays = slots_that_stay(in);
        uint64_t spare = near > stays ? near - stays : 0;
        return refuse_sessions(plan, "device memory", needed, left + spare * in->slots.slot_bytes,
                               err);
    }
    plan->sessions_slots = plan->expert_slots - taken;
    needed = (plan->sessions - 1) * plan->session_state;
    left = moe_memory_border_ram_left(plan) - plan->session_state;
    uint64_t stays = slots_that_stay(in) * in->slots.host_slot_bytes;
    bool shrinks = in->simulated && plan->host_cache > stays;
    uint64_t spare = shrinks ? plan->host_cache - stays : 0;
    return needed > left + spare ? refuse_sessions(plan, "RAM", needed, left + spare, err) : MOE_OK;
}

static int plan_sessions(const moe_plan_input *in, moe_memory_plan *plan, moe_error *err)
{
    plan->sessions_bytes = plan->kv_cache + plan->session_state +
                           (plan->sessions - 1) * (more_kv(in, plan) + plan->session_state);
    plan->sessions_slots = plan->expert_slots;
    if (plan->sessions == 1) {
        return MOE_OK;
    }
    return plan->has_device_memory ? sessions_on_device(in, plan, err)
                                   : sessions_in_one_memory(in, plan, err);
}

/* Rejects a budget that is larger than the machine or control group allows, because the process
 * would be killed. */
static int check_budget(const moe_plan_input *in, const moe_memory_plan *plan, moe_error *err)
{
    if (plan->budget_is_default || in->options->overcommit_memory ||
        plan->budget <= plan->available) {
        return MOE_OK;
    }
    return moe_fail(err, MOE_ERR_BUDGET,
                    "a memory budget of %.0f MiB is more than there is: the machine, or its "
                    "control group, has %.0f MiB, of which %.0f MiB can be used; lower the budget, "
                    "or allow overcommitting memory",
                    (double)plan->budget / MIB, (double)in->limit_bytes / MIB,
                    (double)plan->available / MIB);
}

static uint64_t most_of_limit(const moe_plan_input *in)
{
    return in->limit_bytes == UINT64_MAX
               ? UINT64_MAX
               : in->limit_bytes - min_u64(in->limit_bytes / HEADROOM_DIVISOR, MOST_HEADROOM);
}

int moe_memory_plan_make(const moe_plan_input *in, moe_memory_plan *plan, moe_error *err)
{
    const moe_engine_options *o = in->options;
    *plan = (moe_memory_plan){
        .budget = o->host_memory,
        .budget_is_default = o->host_memory == 0,
        .process = in->process_bytes + o->program_memory,
        .program = o->program_memory,
        .resident = in->resident_bytes,
        .kv_cache = kv_bytes(in),
        .layer_states = in->state_bytes,
        .kv_windowed = moe_kv_session_bytes(&in->kv, in->context, true),
        .scratch = in->scratch_bytes,
        .row_cache = in->row_cache_bytes,
        .row_table = in->map->ngrams.size,
        .expert_bytes = in->map->expert_bytes,
        .context = in->context,
        .session_state = in->session_bytes,
        .sessions = o->sessions != 0 ? o->sessions : 1,
        .available = most_of_limit(in),
    };
    for (uint32_t l = 0; l < in->config->n_layer; l++) {
        plan->experts += moe_layer_has_experts(in->config, l) ? in->config->n_expert : 0;
    }
    if (in->device_memory == 0 && o->device_memory != 0) {
        return moe_fail(err, MOE_ERR_ARGUMENT,
                        "options.device_memory cannot act: the device has no memory of its own; "
                        "choose one that has in options.device, or give a memory budget");
    }
    int status = in->device_memory != 0 ? plan_device(in, plan, err) : MOE_OK;
    if (status == MOE_OK) {
        status = check_budget(in, plan, err);
    }
    if (plan->budget_is_default) {
        plan->budget = default_budget(in);
    }
    if (status != MOE_OK) {
        return status;
    }
    status = in->device_memory != 0 ? plan_host(in, plan, err) : plan_one_memory(in, plan, err);
    return status != MOE_OK ? status : plan_sessions(in, plan, err);
}
