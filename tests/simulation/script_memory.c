/* SPDX-License-Identifier: MIT */
#include "tests/simulation/script_state.h"

#include <string.h>

#include "tests/simulation/virtual_memory.h"

static void check_page(const page *p)
{
    for (size_t i = 0; i < p->bytes; i++) {
        if (p->memory[i] != p->mark) {
            sim_fail("a session's page was written to");
        }
    }
}

static void take_page(script *s)
{
    world *w = s->w;
    static const uint32_t sizes[] = {192, 1024, 4096, 20000};
    moe_error error = {""};
    void *memory;
    bool lent;
    /* All pages of a cache are of one size. */
    size_t bytes = sizes[(w->plan->seed >> 3) % 4];
    script_enter(s);
    int status = moe_memory_border_take_page(&w->border, bytes, &memory, &lent, &error);
    script_leave(s);
    sim_trace("a page of %zu bytes: %d%s", bytes, status, status == MOE_OK && lent ? ", lent" : "");
    if (status == MOE_ERR_BUDGET) {
        return;
    }
    script_check_status(s, status, &error, "a page");
    if (status == MOE_OK) {
        page *p = &s->pages[s->n_pages++];
        *p = (page){memory, bytes, (uint8_t)(1 + s->w->op), lent};
        if (vm_kind_of(memory, bytes) != VC_DEVICE_MEMORY) {
            sim_fail("a page is not in the device's memory");
        }
        memset(memory, p->mark, bytes);
    }
}

static void give_page(script *s, uint32_t i)
{
    page p = s->pages[i];
    check_page(&p);
    s->pages[i] = s->pages[--s->n_pages];
    sim_trace("a page is given back%s", p.lent ? ", which was lent" : "");
    script_enter(s);
    moe_memory_border_give_page(&s->w->border, p.bytes, p.memory, p.lent);
    script_leave(s);
}

static void take_ram(script *s)
{
    moe_error error = {""};
    uint64_t bytes = 1 + sim_below(&s->dice, 40000);
    script_enter(s);
    int status = moe_memory_border_take(&s->w->border, bytes, &error);
    script_leave(s);
    sim_trace("%llu bytes of RAM: %d", (unsigned long long)bytes, status);
    if (status == MOE_ERR_BUDGET) {
        return;
    }
    script_check_status(s, status, &error, "memory");
    if (status == MOE_OK) {
        s->grants[s->n_grants++].bytes = bytes;
    }
}

static void give_ram(script *s, uint32_t i)
{
    uint64_t bytes = s->grants[i].bytes;
    s->grants[i] = s->grants[--s->n_grants];
    sim_trace("%llu bytes of RAM are given back", (unsigned long long)bytes);
    script_enter(s);
    moe_memory_border_give(&s->w->border, bytes);
    script_leave(s);
}

/* Sessions take and give memory between two passes. */
void script_sessions(script *s)
{
    if (s->pass_is_open) {
        script_end_pass(s);
    }
    for (uint32_t n = 1 + sim_below(&s->dice, 4); n > 0; n--) {
        switch (sim_below(&s->dice, 5)) {
        case 0:
            if (s->n_grants < MAX_GRANTS) {
                take_ram(s);
            }
            break;
        case 1:
            if (s->n_grants > 0) {
                give_ram(s, sim_below(&s->dice, s->n_grants));
            }
            break;
        case 2:
            if (s->n_pages < MAX_PAGES) {
                take_page(s);
            }
            break;
        case 3:
            if (s->n_pages > 0) {
                give_page(s, sim_below(&s->dice, s->n_pages));
            }
            break;
        default:
            script_enter(s);
            moe_memory_border_give_back(&s->w->border);
            script_leave(s);
            break;
        }
    }
    for (uint32_t i = 0; i < s->n_pages; i++) {
        check_page(&s->pages[i]);
    }
}

void script_end_sessions(script *s)
{
    while (s->n_pages > 0) {
        give_page(s, s->n_pages - 1);
    }
    while (s->n_grants > 0) {
        give_ram(s, s->n_grants - 1);
    }
    script_enter(s);
    moe_memory_border_give_back(&s->w->border);
    script_leave(s);
}
