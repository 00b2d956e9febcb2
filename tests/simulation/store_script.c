/* SPDX-License-Identifier: MIT */
/* What the engine and its sessions do with a store, in an order and with arguments by chance. Each
 * operation has dice of its own, so that one can be left out without changing the others. */
#include "tests/simulation/script_state.h"

#include <string.h>

#include "tests/simulation/virtual_memory.h"

/* What closing a mover grants copies under way after a cancelled wait, all together (mover.h): two
 * slow ones may take longer. */
#define CLOSING_NS 500000000u

/* ---- More operations ---- */

static uint32_t choose_keys(script *s, uint32_t *keys)
{
    world *w = s->w;
    uint32_t n = 0;
    for (uint32_t i = 0; i < w->n_routed; i++) {
        for (uint32_t e = 0; e < w->map.n_expert; e++) {
            if (sim_below(&s->dice, 2) == 0) {
                keys[n++] = world_key(w, w->routed[i], e);
            }
        }
    }
    script_shuffle(s, keys, n);
    return n;
}

static void warm(script *s)
{
    uint32_t keys[W_MAX_KEYS];
    uint32_t n = choose_keys(s, keys);
    sim_trace("warm %u keys", n);
    script_enter(s);
    (void)moe_expert_store_warm(s->w->store, keys, n);
    script_leave(s);
}

static bool report(double share, void *user)
{
    (void)share;
    return !script_is_cancelled(user);
}

static void fill(script *s)
{
    uint32_t keys[W_MAX_KEYS];
    moe_error error = {""};
    uint32_t n = choose_keys(s, keys);
    if (n == 0) {
        return;
    }
    s->cancel_after = (s->w->plan->without >> W_FAULT_CANCEL & 1) == 0 ? sim_below(&s->dice, 8) : 0;
    sim_trace("fill with %u keys", n);
    script_enter(s);
    int status = moe_expert_store_fill(s->w->store, keys, n, report, s, &error);
    script_leave(s);
    script_check_status(s, status, &error, "filling");
    s->cancel_after = 0;
    s->was_cancelled = false;
}

static void look_ahead(script *s)
{
    world *w = s->w;
    moe_policy_forecast uses[16];
    uint32_t n = sim_below(&s->dice, 17);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t layer_chosen = script_choose_layer(s);
        uses[i] = (moe_policy_forecast){
            .key = world_key(w, layer_chosen, sim_below(&s->dice, w->map.n_expert)),
            .chance = 0.1f + 0.05f * (float)sim_below(&s->dice, 18),
            .pass = s->pass + i / 4};
        for (uint32_t k = 0; k < i; k++) {
            if (uses[k].key == uses[i].key && uses[k].pass == uses[i].pass) {
                n = i;
            }
        }
    }
    script_enter(s);
    moe_expert_store_lookahead(w->store, s->pass, uses, n);
    script_leave(s);
}

static void look_at_stats(script *s)
{
    world *w = s->w;
    moe_expert_store_stats t;
    char line[256];
    script_enter(s);
    moe_expert_store_get_stats(w->store, &t);
    moe_expert_store_describe(w->store, line, sizeof line);
    script_leave(s);
    if (t.n_resident > t.n_slots || t.n_host_resident > t.n_host_slots ||
        t.prefetches_used + t.prefetches_wasted > t.prefetches || t.demoted_hits > t.host_hits ||
        t.demoted + t.demotions_lost > t.evictions + t.n_asked[0] + t.n_asked[1] + t.n_asked[2] ||
        t.policy_faults > 0) {
        sim_fail("statistics that cannot be: %llu resident, %llu policy faults",
                 (unsigned long long)t.n_resident, (unsigned long long)t.policy_faults);
    }
    if (t.n_timeouts > 0 && !w->may_hang) {
        sim_fail("a time-out though nothing hangs");
    }
}

typedef struct operation {
    void (*run)(script *s);
    uint32_t weight;
} operation;

static void pause_a_while(script *s)
{
    script_linger(s, 100);
}

static void note_cancel(script *s)
{
    script_enter(s);
    moe_expert_store_note_cancel(s->w->store);
    script_leave(s);
}

static const operation operations[] = {
    {script_layer, 60},
    {script_prefetch, 14},
    {script_foresee, 7},
    {script_forget, 3},
    {script_peek, 3},
    {warm, 3},
    {fill, 2},
    {script_end_pass, 10},
    {script_sessions, 8},
    {script_pass_in_place, 10},
    {look_ahead, 3},
    {look_at_stats, 3},
    {pause_a_while, 8},
    {note_cancel, 1},
};

static void run_operation(script *s)
{
    uint32_t total = 0;
    const uint32_t n = sizeof operations / sizeof operations[0];
    for (uint32_t i = 0; i < n; i++) {
        total += operations[i].weight;
    }
    uint32_t at = sim_below(&s->dice, total);
    for (uint32_t i = 0; i < n; i++) {
        if (at < operations[i].weight) {
            operations[i].run(s);
            return;
        }
        at -= operations[i].weight;
    }
}

/* ---- The whole ---- */

static void open_border(world *w)
{
    sim_dice dice = sim_dice_of(w->plan->seed, 40);
    uint64_t ram = sim_below(&dice, 3) * 8192, on_device = sim_below(&dice, 3) * 8192;
    moe_memory_plan plan = {.has_device_memory = w->has_link};
    moe_expert_store_stats stats;
    moe_expert_store_get_stats(w->store, &stats);
    if (w->has_link) {
        plan.host_cache = stats.host_slot_bytes_total;
        plan.budget = plan.total = plan.host_cache + ram;
        plan.kv_cache = on_device;
        plan.expert_cache = stats.slot_bytes_total;
        plan.device_budget = plan.device_total = plan.kv_cache + plan.expert_cache;
    } else {
        plan.expert_cache = stats.slot_bytes_total;
        plan.kv_cache = ram;
        plan.budget = plan.total = plan.expert_cache + plan.kv_cache;
    }
    moe_memory_border_open(&w->border, &w->store, &w->card.base, &plan);
    w->has_border = true;
    w->n_slots = (uint32_t)stats.n_slots;
}

/* Nothing is broken any more: every expert can be had. */
static void final_passes(script *s)
{
    world *w = s->w;
    world_heal(w);
    if (sim_below(&s->dice, 2) == 0) {
        script_end_sessions(s);
    }
    for (uint32_t i = 0; i < w->n_routed; i++) {
        for (uint32_t attempt = 0;; attempt++) {
            layer_work l;
            script_plan_layer(s, &l, true);
            l.request.layer = w->routed[i];
            l.request.keep = NULL;
            l.request.n_keep = 0;
            int status = script_run_layer(s, &l, true);
            if (status == MOE_OK) {
                break;
            }
            if (w->disk.never_per_mille > 0 && w->may_hang) {
                return; /* something hangs for ever */
            }
            if (attempt == 100) {
                sim_fail("layer %u cannot be had though nothing is broken", w->routed[i]);
            }
            for (uint32_t nap = 0; nap < 20; nap++) {
                (void)sim_block(s, sim_now_ns() + w->options.io_timeout_ns / 20);
            }
        }
    }
    script_end_pass(s);
    look_at_stats(s);
}

static bool open_store(script *s)
{
    world *w = s->w;
    moe_error error = {""};
    sim_trace("%u layers of %u experts, %u of them used; %s, %u cards, %u drives; policy %s%s%s%s",
              w->map.n_layer, w->map.n_expert, w->options.n_expert_used,
              w->has_link ? "a link" : "no link", w->n_cards, w->disk.n_drives,
              w->options.policy->name, w->options.per_layer ? ", slots for each layer" : "",
              w->options.keep_nothing ? ", keeps nothing" : "", w->disk.blocks ? ", blocks" : "");
    int status = moe_expert_store_open(&w->store, &w->options, &error);
    sim_trace("open: %d %s", status, error.message);
    if (status == MOE_OK) {
        return true;
    }
    if (w->store != NULL || error.message[0] == '\0') {
        sim_fail("a store that did not open: %d", status);
    }
    if (status != MOE_ERR_BUDGET && status != MOE_ERR_ARGUMENT && status != MOE_ERR_UNSUPPORTED) {
        script_check_status(s, status, &error, "opening");
    }
    return false;
}

static void close_store(script *s)
{
    world *w = s->w;
    uint64_t begin = w->close_ns = sim_now_ns();
    sim_trace("close");
    script_enter(s);
    moe_expert_store_close(&w->store);
    uint64_t took = sim_now_ns() - begin;
    if (took > 4 * w->options.io_timeout_ns + 2500000000u) {
        sim_fail("closing took %.1f ms", (double)took / 1e6);
    }
}

static void check_end(script *s)
{
    world *w = s->w;
    sim_heap *heap = sim_heap_now();
    for (uint32_t i = 0; i < s->n_pages; i++) {
        if (!s->pages[i].lent) {
            vm_free(s->pages[i].memory, s->pages[i].bytes);
        }
    }
    if (w->told_left) {
        sim_be_patient(SIM_NEVER / 2); /* what was left behind may go on */
        (void)sim_block(s, sim_now_ns() + 8 * w->options.io_timeout_ns);
    } else {
        world_close_cards(w);
    }
    bool late = virtual_card_ended_after(&w->card, w->close_ns + CLOSING_NS) ||
                virtual_card_ended_after(&w->second_card, w->close_ns + CLOSING_NS);
    if (w->told_left && !w->may_hang && !late) {
        sim_fail("memory stays allocated though nothing hangs");
    }
    if (!w->told_left && (vm_n_live() > 0 || heap->n_live != 0)) {
        sim_fail("%u blocks of devices and %lld of the heap stay allocated", vm_n_live(),
                 (long long)heap->n_live);
    }
    sim_drain_events(SIM_NEVER - 1); /* late writes */
}

/* Opens a store, uses it, closes it. */
void sim_world_script(void *user)
{
    static script s;
    world *w = user;
    memset(&s, 0, sizeof s);
    s.w = w;
    world_choose(w, w->plan);
    s.dice = sim_dice_of(w->plan->seed, 50);
    uint32_t n_ops = 5 + sim_below(&s.dice, sim_below(&s.dice, 4) == 0 ? SIM_MAX_OPS - 5 : 40);
    n_ops = w->plan->n_ops != 0 && w->plan->n_ops < n_ops ? w->plan->n_ops : n_ops;
    bool ends_well = sim_below(&s.dice, 4) != 0;
    if (open_store(&s)) {
        open_border(w);
        s.most_kept = w->n_classes == 1 && w->n_slots > 0
                          ? (w->options.per_layer ? w->n_slots / w->n_routed : w->n_slots) / 2
                          : 0;
        s.most_kept -= s.most_kept > 0;
        script_leave(&s);
        for (w->op = 0; w->op < n_ops; w->op++) {
            if (w->plan->skipped[w->op] == 0) {
                s.dice = sim_dice_of(w->plan->seed, 1000 + w->op);
                run_operation(&s);
            }
        }
        if (ends_well) {
            s.dice = sim_dice_of(w->plan->seed, 60);
            final_passes(&s);
        }
        close_store(&s);
    }
    check_end(&s);
}
