/* SPDX-License-Identifier: MIT */
#include "tests/simulation/script_state.h"

#include <string.h>

#include "tests/simulation/virtual_memory.h"

typedef struct place_layer {
    uint8_t reach[W_MAX_EXPERTS];
    moe_expert_address addresses[W_MAX_EXPERTS];
    uint32_t experts[W_MAX_EXPERTS];
    uint32_t n;
    moe_kept_expert kept[W_MAX_EXPERTS];
    uint32_t n_kept;
} place_layer;

static place_layer places[W_MAX_LAYERS];

static void check_places(script *s, const char *what)
{
    for (uint32_t i = 0; i < s->w->n_routed; i++) {
        const place_layer *p = &places[i];
        for (uint32_t e = 0; e < s->w->map.n_expert; e++) {
            if (p->reach[e] != MOE_REACH_NONE) {
                world_check_parts(s->w, s->w->routed[i], e, p->addresses[e].parts, what);
            }
        }
    }
}

static void ask_for_places(script *s)
{
    world *w = s->w;
    script_enter(s);
    (void)moe_expert_store_settle(w->store);
    for (uint32_t i = 0; i < w->n_routed; i++) {
        place_layer *p = &places[i];
        moe_expert_store_reach(w->store, w->routed[i], sim_below(&s->dice, 4) != 0, p->reach,
                               p->addresses);
        p->n = p->n_kept = 0;
        for (uint32_t e = 0; e < w->map.n_expert; e++) {
            if (p->reach[e] != MOE_REACH_NONE && sim_below(&s->dice, 3) != 0) {
                p->experts[p->n++] = e;
            }
        }
    }
    script_leave(s);
    check_places(s, "reached");
    for (uint32_t i = 0; i < w->n_routed; i++) {
        for (uint32_t e = 0; e < w->map.n_expert; e++) {
            if (places[i].reach[e] != MOE_REACH_NONE) {
                world_rely(w, w->routed[i], e, places[i].addresses[e].parts, "it is reached");
            }
        }
    }
}

static bool is_used(const script *s, uint32_t key)
{
    for (uint32_t i = 0; i < s->w->n_routed; i++) {
        for (uint32_t k = 0; k < places[i].n; k++) {
            if (world_key(s->w, s->w->routed[i], places[i].experts[k]) == key) {
                return true;
            }
        }
    }
    return false;
}

/* The pass keeps an expert of its i-th layer in an offered slot: a kernel copies it. */
static void keep_in(script *s, uint32_t i, uint32_t expert, const moe_slot_offer *offer)
{
    world *w = s->w;
    place_layer *p = &places[i];
    const moe_expert_ref *ref = &w->experts[world_key(w, w->routed[i], expert)];
    for (uint32_t part = 0; part < MOE_EXPERT_PARTS; part++) {
        if (ref->parts[part].size > 0) {
            memcpy((void *)(uintptr_t)offer->place.parts[part], p->addresses[expert].parts[part],
                   ref->parts[part].size);
        }
    }
    p->kept[p->n_kept++] = (moe_kept_expert){expert, offer};
    if (offer->key != MOE_KEY_NONE) {
        uint32_t layer = offer->key / w->map.n_expert;
        for (uint32_t k = 0; k < w->n_routed; k++) {
            if (w->routed[k] == layer) {
                places[k].reach[offer->key % w->map.n_expert] = MOE_REACH_NONE;
            }
        }
    }
}

static void take_offers(script *s)
{
    world *w = s->w;
    uint32_t next[W_MAX_LAYERS], end[W_MAX_LAYERS];
    s->n_offers = 0;
    for (uint32_t i = 0; i < w->n_routed; i++) {
        uint32_t d = moe_expert_store_domain_of(w->store, w->routed[i]);
        next[i] = end[i] = 0;
        bool asked = false;
        for (uint32_t k = 0; k < i; k++) {
            asked = asked || moe_expert_store_domain_of(w->store, w->routed[k]) == d;
        }
        if (!asked && sim_below(&s->dice, 3) != 0) {
            uint32_t most = 1 + sim_below(&s->dice, 6);
            next[i] = s->n_offers;
            s->n_offers +=
                moe_expert_store_offer(w->store, w->routed[i], most, s->offers + s->n_offers);
            end[i] = s->n_offers;
        }
    }
    for (uint32_t i = 0; i < w->n_routed; i++) {
        uint32_t of = 0; /* the layer that asked for the domain */
        while (moe_expert_store_domain_of(w->store, w->routed[of]) !=
               moe_expert_store_domain_of(w->store, w->routed[i])) {
            of++;
        }
        for (uint32_t k = 0; k < places[i].n && next[of] < end[of]; k++) {
            uint32_t expert = places[i].experts[k];
            const moe_slot_offer *offer = &s->offers[next[of]];
            bool free = offer->key == MOE_KEY_NONE ||
                        (offer->key / w->map.n_expert <= w->routed[i] && !is_used(s, offer->key));
            if (places[i].reach[expert] == MOE_REACH_HOST && free &&
                places[i].addresses[expert].over_link != MOE_OVER_LINK_COMING &&
                sim_below(&s->dice, 2) == 0) {
                keep_in(s, i, expert, offer);
                next[of]++;
            }
        }
    }
}

static void tell_of_place(script *s, uint32_t i)
{
    world *w = s->w;
    layer_work l;
    uint8_t reach[W_MAX_EXPERTS];
    const moe_played_layer played = {.reach = reach,
                                     .kept = places[i].kept,
                                     .n_kept = places[i].n_kept,
                                     .offered = sim_below(&s->dice, 2) == 0};
    memset(&l, 0, sizeof l);
    l.request = (moe_layer_request){.layer = w->routed[i],
                                    .pass = s->pass,
                                    .experts = l.experts,
                                    .n_rows = l.n_rows,
                                    .n = places[i].n,
                                    .played = &played};
    memset(reach, MOE_REACH_NONE, sizeof reach);
    for (uint32_t k = 0; k < l.request.n; k++) {
        uint32_t e = places[i].experts[k];
        l.experts[k] = e;
        l.n_rows[k] = 1;
        reach[e] = places[i].reach[e];
        if (reach[e] == MOE_REACH_HOST) {
            l.served[k] = true;
            l.n_served++;
        }
    }
    (void)script_run_layer(s, &l, true);
}

void script_pass_in_place(script *s)
{
    world *w = s->w;
    if (!w->has_link || w->n_cards > 1) {
        return;
    }
    sim_trace("a pass of the device alone");
    ask_for_places(s);
    script_linger(s, 60);
    check_places(s, "reached, later");
    bool fails = sim_below(&s->dice, 6) == 0;
    vm_end_all(VM_RELIED);
    take_offers(s);
    if (fails) {
        sim_trace("the pass fails: %u offers are lost", s->n_offers);
        script_enter(s);
        for (uint32_t i = 0; i < s->n_offers; i++) {
            moe_expert_store_lose_offer(w->store, &s->offers[i]);
        }
        script_leave(s);
        return;
    }
    s->in_place = true;
    for (uint32_t i = 0; i < w->n_routed; i++) {
        tell_of_place(s, i);
    }
    s->in_place = false;
    script_enter(s);
    moe_expert_store_promote(w->store, s->pass);
    script_leave(s);
    script_end_pass(s);
}
