/* SPDX-License-Identifier: MIT */
#include "tests/simulation/script_state.h"

#include <string.h>

#include <moe/lab.h>

#include "tests/simulation/virtual_memory.h"

static uint64_t count_of(script *s)
{
    moe_expert_store_stats stats;
    moe_expert_store_get_stats(s->w->store, &stats);
    return stats.hits + stats.misses;
}

void script_plan_layer(script *s, layer_work *l, bool all)
{
    world *w = s->w;
    memset(l, 0, sizeof *l);
    l->request = (moe_layer_request){.layer = script_choose_layer(s),
                                     .pass = s->pass,
                                     .experts = l->experts,
                                     .n_rows = l->n_rows,
                                     .gates = sim_below(&s->dice, 2) == 0 ? l->gates : NULL};
    uint32_t n = script_choose_experts(s, l->experts, 1);
    if (all) {
        for (n = 0; n < w->map.n_expert; n++) {
            l->experts[n] = n;
        }
    }
    l->request.n = n;
    for (uint32_t i = 0; i < n; i++) {
        l->n_rows[i] = 1 + sim_below(&s->dice, 5);
        l->gates[i] = 0.5f;
    }
    l->request.verifies = sim_below(&s->dice, 6) == 0;
    if (!all && sim_below(&s->dice, 5) == 0 && (w->plan->without >> W_FAULT_CANCEL & 1) == 0) {
        s->cancel_after = 1 + sim_below(&s->dice, 6);
        l->request.cancel = (moe_wait_cancel){script_is_cancelled, s};
    }
    if (w->options.n_kept == 0 && s->most_kept > 0 && sim_below(&s->dice, 8) == 0) {
        uint32_t n_before = 0;
        for (uint32_t e = 0; e < w->map.n_expert; e++) {
            bool *is_kept = &s->is_kept[world_key(w, l->request.layer, e)];
            n_before += *is_kept;
            *is_kept = false;
        }
        uint32_t room = s->most_kept - (s->n_kept_now - n_before);
        for (uint32_t e = 0; e < w->map.n_expert && l->request.n_keep < room; e++) {
            if (sim_below(&s->dice, 3) == 0) {
                l->keep[l->request.n_keep++] = e;
                s->is_kept[world_key(w, l->request.layer, e)] = true;
            }
        }
        s->n_kept_now += l->request.n_keep - n_before;
        l->request.keep = l->keep;
    }
}

static void serve(script *s, layer_work *l, uint32_t position)
{
    (void)s;
    if (position >= l->request.n || l->served[position]) {
        sim_fail("position %u of %u is handed over%s", position, l->request.n,
                 position < l->request.n ? " twice" : "");
    }
    l->served[position] = true;
    l->n_served++;
}

/* Asks for experts to be computed on the host: those that may be, or any. */
static void choose_on_host(script *s, layer_work *l)
{
    world *w = s->w;
    uint8_t tiers[W_MAX_EXPERTS];
    moe_expert_sites sites;
    if (!w->uses_host || l->request.played != NULL) {
        return;
    }
    bool any = sim_below(&s->dice, 4) == 0;
    script_enter(s);
    moe_expert_store_locate(w->store, l->request.layer, l->experts, l->request.n, tiers, &sites);
    script_leave(s);
    uint32_t n = 0;
    for (uint32_t i = 0; i < l->request.n; i++) {
        bool is_on_host = tiers[i] == MOE_TIER_HOST && n < sites.most_on_host;
        l->on_host[i] =
            any ? sim_below(&s->dice, 2) == 0 : is_on_host && sim_below(&s->dice, 8) != 0;
        n += l->on_host[i];
    }
    l->request.on_host = l->on_host;
}

static bool is_on_host(const layer_work *l, uint32_t position)
{
    return l->request.on_host != NULL && position < l->request.n && l->on_host[position];
}

/* Serves a batch; one of the host's stays valid until the layer ends. */
static void take(script *s, layer_work *l)
{
    bool on_host = is_on_host(l, l->positions[0]);
    for (uint32_t i = 0; i < l->n; i++) {
        serve(s, l, l->positions[i]);
        if (is_on_host(l, l->positions[i]) != on_host) {
            sim_fail("a batch has experts of the device and of the host");
        }
    }
    if (on_host) {
        memcpy(l->host_positions, l->positions, l->n * sizeof *l->positions);
        memcpy(l->host_views, l->views, l->n * sizeof *l->views);
        l->n_host = l->n;
        l->n = 0;
    }
}

static void check_host(script *s, layer_work *l, const char *what)
{
    for (uint32_t i = 0; i < l->n_host; i++) {
        world_check_view(s->w, l->request.layer, l->experts[l->host_positions[i]],
                         &l->host_views[i], what);
    }
}

static void check_batch(script *s, layer_work *l, const char *what)
{
    for (uint32_t i = 0; i < l->n; i++) {
        world_check_view(s->w, l->request.layer, l->experts[l->positions[i]], &l->views[i], what);
    }
}

/* Relies on the batch, and on what the host computes, until the next call. */
static void rely_on(script *s, layer_work *l)
{
    for (uint32_t i = 0; i < l->n + l->n_host; i++) {
        const moe_expert_view *view = i < l->n ? &l->views[i] : &l->host_views[i - l->n];
        uint32_t at = i < l->n ? l->positions[i] : l->host_positions[i - l->n];
        const void *parts[MOE_EXPERT_PARTS];
        for (uint32_t p = 0; p < MOE_EXPERT_PARTS; p++) {
            parts[p] = view->parts[p].data;
        }
        world_rely(s->w, l->request.layer, l->experts[at], parts, "a layer computes with it");
    }
}

/* Takes batches until the layer is done, fails or is given up. */
static int take_batches(script *s, layer_work *l, bool whole, moe_error *error)
{
    int status = MOE_OK;
    uint32_t give_up = whole || sim_below(&s->dice, 10) != 0 ? UINT32_MAX : sim_below(&s->dice, 3);
    for (uint32_t round = 0;; round++) {
        if (round == give_up) {
            sim_trace("the pass gives up");
            break;
        }
        check_batch(s, l, "just before the next call");
        vm_end_all(VM_RELIED);
        l->n = 0;
        rely_on(s, l);
        script_enter(s);
        status = moe_expert_store_next(s->w->store, l->positions, l->views, &l->n, error);
        script_leave(s);
        sim_trace("next: %d, %u experts", status, l->n);
        if (status != MOE_OK || l->n == 0) {
            l->n = 0;
            return status;
        }
        take(s, l);
        check_batch(s, l, "handed over");
        check_host(s, l, "for the host");
        vm_end_all(VM_RELIED);
        rely_on(s, l);
        script_while_waiting(s);
    }
    return MOE_ERR_CANCELLED;
}

static void check_counts(script *s, const layer_work *l, int status)
{
    uint64_t n = count_of(s) - l->counted;
    if (status == MOE_OK && (l->n_served != l->request.n || n != l->request.n)) {
        sim_fail("%u of %u experts were handed over, %llu counted", l->n_served, l->request.n,
                 (unsigned long long)n);
    }
    if (n > l->request.n) {
        sim_fail("%llu experts were counted of %u", (unsigned long long)n, l->request.n);
    }
}

int script_run_layer(script *s, layer_work *l, bool whole)
{
    world *w = s->w;
    moe_error error = {""};
    sim_trace("layer %u, %u experts%s%s", l->request.layer, l->request.n,
              l->request.keep != NULL ? ", keeps some" : "",
              l->request.cancel.is_cancelled != NULL ? ", may be cancelled" : "");
    s->pass_is_open = true;
    choose_on_host(s, l);
    l->counted = count_of(s);
    script_enter(s);
    int status = moe_expert_store_begin(w->store, &l->request, &error);
    script_leave(s);
    bool begun = status == MOE_OK;
    bool gave_up = false;
    if (begun) {
        script_while_waiting(s);
        status = take_batches(s, l, whole, &error);
        gave_up = status == MOE_ERR_CANCELLED && !s->was_cancelled;
    }
    check_host(s, l, "for the host, at the end");
    vm_end_all(VM_RELIED);
    if (l->request.on_host != NULL ||
        (status != MOE_OK && (gave_up || sim_below(&s->dice, 2) == 0))) {
        sim_trace("end of layer, the host has computed %u experts", l->n_host);
        l->n_host = 0;
        script_enter(s);
        moe_expert_store_end_layer(w->store);
        script_leave(s);
    }
    if (!gave_up) {
        script_check_status(s, status, &error, "a layer");
    }
    check_counts(s, l, status);
    s->cancel_after = 0;
    s->was_cancelled = false;
    return status;
}

void script_layer(script *s)
{
    layer_work l;
    script_plan_layer(s, &l, false);
    (void)script_run_layer(s, &l, false);
}

void script_end_pass(script *s)
{
    sim_trace("end of pass %llu", (unsigned long long)s->pass);
    script_enter(s);
    moe_expert_store_end_pass(s->w->store, s->pass++);
    script_leave(s);
    s->pass_is_open = false;
}
