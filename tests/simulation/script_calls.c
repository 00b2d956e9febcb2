/* SPDX-License-Identifier: MIT */
#include "tests/simulation/script_state.h"

/* ---- Calls: the store is looked at before and after each ---- */

void script_enter(script *s)
{
    sim_be_quiet(true);
    world_look(s->w);
    sim_be_quiet(false);
    s->w->between_calls = false;
}

void script_leave(script *s)
{
    s->w->between_calls = true;
    sim_be_quiet(true);
    world_look(s->w);
    sim_be_quiet(false);
}

/* Time for others. */
void script_linger(script *s, uint32_t most)
{
    for (uint32_t n = sim_below(&s->dice, most + 1); n > 0; n--) {
        sim_point();
    }
}

bool script_is_cancelled(void *user)
{
    script *s = user;
    if (s->cancel_after == 0) {
        return false;
    }
    s->was_cancelled = --s->cancel_after == 0;
    s->cancel_after += s->was_cancelled; /* it stays so */
    return s->was_cancelled;
}

/* Whether a call may fail so in this world. */
void script_check_status(const script *s, int status, const moe_error *error, const char *what)
{
    const world *w = s->w;
    bool hangs = w->may_hang && (status == MOE_ERR_IO || status == MOE_ERR_DEVICE);
    bool fails = w->may_fail && (status == MOE_ERR_IO || status == MOE_ERR_DEVICE) &&
                 (!w->is_healed || w->may_hang);
    bool refused = sim_heap_now()->n_refused > 0 && status == MOE_ERR_MEMORY;
    bool cancelled = s->was_cancelled && status == MOE_ERR_CANCELLED;
    if (status != MOE_OK && !hangs && !fails && !refused && !cancelled) {
        sim_fail("%s fails (%d): %.180s", what, status, error->message);
    }
}

uint32_t script_choose_layer(script *s)
{
    return s->w->routed[sim_below(&s->dice, s->w->n_routed)];
}

/* Distinct experts, ascending. */
uint32_t script_choose_experts(script *s, uint32_t *experts, uint32_t least)
{
    uint32_t n = 0;
    uint32_t n_expert = s->w->map.n_expert;
    uint32_t wanted = sim_below(&s->dice, 4) == 0 ? n_expert : s->w->options.n_expert_used + 1;
    wanted = wanted < n_expert ? 1 + sim_below(&s->dice, wanted) : n_expert;
    for (uint32_t e = 0; e < n_expert; e++) {
        if (sim_below(&s->dice, n_expert - e) < wanted - n) {
            experts[n++] = e;
            if (n == wanted) {
                break;
            }
        }
    }
    return n < least ? least : n;
}

void script_shuffle(script *s, uint32_t *experts, uint32_t n)
{
    for (uint32_t i = n; i > 1; i--) {
        uint32_t k = sim_below(&s->dice, i);
        uint32_t e = experts[k];
        experts[k] = experts[i - 1];
        experts[i - 1] = e;
    }
}

/* ---- Between layers, and while one is at work ---- */

void script_prefetch(script *s)
{
    uint32_t experts[W_MAX_EXPERTS];
    uint32_t layer = script_choose_layer(s);
    uint32_t n = script_choose_experts(s, experts, 0);
    script_shuffle(s, experts, n);
    uint32_t most = 1 + sim_below(&s->dice, 8);
    sim_trace("prefetch %u experts of layer %u, at most %u", n, layer, most);
    script_enter(s);
    moe_expert_store_prefetch(s->w->store, layer, s->pass, experts, n, most);
    script_leave(s);
}

void script_foresee(script *s)
{
    uint32_t experts[W_MAX_EXPERTS];
    uint32_t layer = script_choose_layer(s);
    uint32_t n = script_choose_experts(s, experts, 0);
    script_shuffle(s, experts, n);
    sim_trace("foresee %u experts of layer %u", n, layer);
    script_enter(s);
    moe_expert_store_foresee(s->w->store, layer, s->pass, experts, n);
    script_leave(s);
}

static bool is_still_foreseen(uint32_t layer, uint32_t expert, void *user)
{
    script *s = user;
    return (layer + expert + s->w->op) % 3 == 0;
}

void script_forget(script *s)
{
    sim_trace("forget");
    script_enter(s);
    moe_expert_store_forget(s->w->store, is_still_foreseen, s);
    script_leave(s);
}

/* Reads what the store says, and computes with experts that are there. */
void script_peek(script *s)
{
    world *w = s->w;
    bool resident[W_MAX_EXPERTS];
    uint8_t hops[W_MAX_EXPERTS], tiers[W_MAX_KEYS];
    uint32_t experts[W_MAX_EXPERTS], n = 0;
    moe_expert_view views[W_MAX_EXPERTS];
    uint32_t layer = script_choose_layer(s);
    sim_trace("peek at layer %u", layer);
    script_enter(s);
    (void)moe_expert_store_version(w->store);
    moe_expert_store_residents(w->store, layer, resident);
    moe_expert_store_hops(w->store, layer, hops);
    moe_expert_store_tiers(w->store, tiers);
    for (uint32_t e = 0; e < w->map.n_expert; e++) {
        if (resident[e]) {
            experts[n++] = e;
        }
    }
    moe_expert_store_peek(w->store, layer, experts, n, views);
    script_leave(s);
    for (uint32_t i = 0; i < n; i++) {
        world_check_view(w, layer, experts[i], &views[i], "a peek");
    }
    script_linger(s, 10);
    for (uint32_t i = 0; i < n; i++) {
        world_check_view(w, layer, experts[i], &views[i], "a peek, later");
    }
}

void script_while_waiting(script *s)
{
    switch (s->in_place ? 3 + sim_below(&s->dice, 1) : sim_below(&s->dice, 12)) {
    case 0:
        script_prefetch(s);
        break;
    case 1:
        script_foresee(s);
        break;
    case 2:
        script_peek(s);
        break;
    case 3:
        script_enter(s);
        (void)moe_expert_store_expected_wait_ns(s->w->store);
        (void)moe_expert_store_read_ns(s->w->store);
        (void)moe_expert_store_is_idle(s->w->store);
        moe_expert_store_note_wait(s->w->store, 1000);
        script_leave(s);
        break;
    case 4:
        script_forget(s);
        break;
    default:
        break;
    }
    script_linger(s, 20);
}
