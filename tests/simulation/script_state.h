/* SPDX-License-Identifier: MIT */
/* Shared by the files of the script: script_calls.c (how the store is called, and what may be done
 * at any time), script_layer.c (a layer of a pass), script_place.c (a pass that the device carries
 * out alone), script_memory.c (sessions), store_script.c (the whole). */
#ifndef MOE_TESTS_SCRIPT_STATE_H
#define MOE_TESTS_SCRIPT_STATE_H

#include "tests/simulation/store_world.h"

#define MAX_GRANTS 12u
#define MAX_PAGES  12u

typedef struct grant {
    uint64_t bytes;
} grant;

typedef struct page {
    uint8_t *memory;
    size_t bytes;
    uint8_t mark;
    bool lent;
} page;

/* What the script keeps between operations. */
typedef struct script {
    world *w;
    sim_dice dice; /* of the operation */
    uint64_t pass;
    bool pass_is_open;
    uint64_t n_asked, n_counted;
    grant grants[MAX_GRANTS];
    uint32_t n_grants;
    page pages[MAX_PAGES];
    uint32_t n_pages;
    uint32_t cancel_after; /* looks until a wait is cancelled; 0: never */
    bool was_cancelled;
    uint32_t most_kept, n_kept_now;
    bool is_kept[W_MAX_KEYS];
    bool in_place; /* nothing may move but what the pass has moved */
    moe_slot_offer offers[MOE_MOST_OFFERS];
    uint32_t n_offers;
} script;

typedef struct layer_work {
    moe_layer_request request;
    uint32_t experts[W_MAX_EXPERTS], n_rows[W_MAX_EXPERTS], keep[W_MAX_EXPERTS];
    float gates[W_MAX_EXPERTS];
    bool on_host[W_MAX_EXPERTS];
    bool served[W_MAX_EXPERTS]; /* by position */
    uint32_t n_served;
    uint32_t positions[W_MAX_EXPERTS];
    moe_expert_view views[W_MAX_EXPERTS];
    uint32_t n;
    uint32_t host_positions[W_MAX_EXPERTS];
    moe_expert_view host_views[W_MAX_EXPERTS];
    uint32_t n_host;
    uint64_t counted; /* hits and misses before it */
} layer_work;

/* Before and after each call of the store, which is looked at there. */
void script_enter(script *s);
void script_leave(script *s);
/* Gives others time. */
void script_linger(script *s, uint32_t most);
bool script_is_cancelled(void *user);
/* Fails the run unless a call may fail so in this world. */
void script_check_status(const script *s, int status, const moe_error *error, const char *what);
uint32_t script_choose_layer(script *s);
/* Chooses distinct experts, ascending; how many. */
uint32_t script_choose_experts(script *s, uint32_t *experts, uint32_t least);
void script_shuffle(script *s, uint32_t *experts, uint32_t n);

/* Operations. */
void script_prefetch(script *s);
void script_foresee(script *s);
void script_forget(script *s);
void script_peek(script *s);
/* Something that a pass does while experts are on their way. */
void script_while_waiting(script *s);
void script_layer(script *s);
void script_end_pass(script *s);
void script_pass_in_place(script *s);
void script_sessions(script *s);

void script_plan_layer(script *s, layer_work *l, bool all);
/* whole: does not give up. */
int script_run_layer(script *s, layer_work *l, bool whole);
void script_end_sessions(script *s);

#endif
