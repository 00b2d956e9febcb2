/* SPDX-License-Identifier: MIT */
/* The server is started, has its clients, and ends. */
#include <stdlib.h>
#include <string.h>

#include "tests/simulation/server_world.h"

#define MOST_LOANS 200u
#define END_NS     ((SERVER_DRAIN_SECONDS + 2 + 3) * UINT64_C(1000000000))

/* ---- Clients: a fiber for each connection ---- */

static void make_request(server_world *w, uint32_t connection, uint32_t index)
{
    sw_request *r = &w->requests[index];
    r->made = true;
    w->n_jobs += r->n;
    for (uint32_t i = 0; i < w->n_requests; i++) {
        sw_request *other = &w->requests[i];
        if (other->made && !other->let_go && other->most_jobs < w->n_jobs) {
            other->most_jobs = w->n_jobs;
        }
    }
    sim_trace("request %u: %s", index, r->how.body != NULL ? r->how.body : r->how.path);
    vh_answer answer = vh_ask(connection, &r->how);
    r->let_go = true;
    w->n_jobs -= r->n;
    sim_trace("request %u: status %u, %zu bytes%s%s", index, answer.status, answer.size,
              answer.left ? ", left" : "", answer.broken ? ", broken" : "");
    sw_check_answer(w, r, &answer);
    sim_point();
}

/* Requests on one connection; false: there are no more. */
static bool use_connection(server_world *w, uint32_t connection, sim_dice *dice)
{
    uint32_t n = 1 + sim_below(dice, 3);
    uint32_t client = w->requests[w->next].client;
    if (!vh_connect(connection, client)) {
        return false;
    }
    for (bool goes_on = true; n > 0 && goes_on && w->next < w->n_requests; n--) {
        uint32_t index = w->next++;
        w->requests[index].client = client;
        if (w->plan->skipped[index] == 0) {
            make_request(w, connection, index);
        }
        if (sim_below(dice, 4) == 0) {
            vh_sleep(sim_roll(dice) % 200000000u);
        }
        goes_on = !vh_has_left(connection);
    }
    vh_disconnect(connection);
    return true;
}

static void *run_connection(void *argument)
{
    server_world *w = &the_server_world;
    uint32_t connection = (uint32_t)(uintptr_t)argument;
    sim_dice dice = sim_dice_of(w->plan->seed, 500 + connection);
    bool goes_on = true;
    while (goes_on && vh_await_open() && w->next < w->n_requests) {
        goes_on = use_connection(w, connection, &dice);
    }
    w->n_clients_left--;
    sim_wake(&w->n_clients_left, true);
    return NULL;
}

/* ---- What happens by itself ---- */

static void stop_now(server_world *w)
{
    if (!w->stop) {
        w->stop = true;
        w->stop_ns = sim_now_ns();
        w->leapt_at_stop_ns = sim_leapt_ns();
        sim_trace("SIGTERM");
    }
}

static void at_sigterm(void *user, uint32_t argument)
{
    (void)argument;
    stop_now(user);
}

static void lend(void *user, uint32_t n_before)
{
    server_world *w = user;
    sim_dice dice = sim_dice_of(w->plan->seed, 600 + n_before);
    bool last = n_before == MOST_LOANS;
    ve_lend(last ? 0 : sim_below(&dice, the_engine.n_pages));
    if (!last) {
        sim_event(sim_now_ns() + sim_roll(&dice) % 300000000u, lend, w, n_before + 1);
    }
}

static bool is_stopped(void *user)
{
    server_world *w = user;
    if (w->n_clients_left == 0) {
        stop_now(w);
    }
    return w->stop;
}

/* ---- The run ---- */

static void check_end(server_world *w, int status, const char *error)
{
    uint64_t took = sim_now_ns() - w->stop_ns - (sim_leapt_ns() - w->leapt_at_stop_ns);
    const sim_heap *heap = sim_heap_now();
    if (status != 0 && heap->n_refused == 0) {
        sim_fail("the server does not start, for no reason: %s", error);
    }
    if (status == 0 && took > END_NS) {
        sim_fail("the server's end took %.1f s", (double)took / 1e9);
    }
    if (the_engine.n_alive > 0) {
        sim_fail("%u sessions are not closed", the_engine.n_alive);
    }
    if (heap->n_live != 0) {
        sim_fail("memory: %lld allocations are left", (long long)heap->n_live);
    }
}

void sim_world_script(void *user)
{
    server_world *w = user;
    char error[256] = "";
    sw_choose(w);
    w->options.host = "localhost";
    static const char *const names[] = {"model"};
    w->options.names = names;
    w->options.n_names = 1;
    w->options.model = names[0];
    w->options.stopped = is_stopped;
    w->options.user = w;
    w->options.cache_folder = sw_may(w, SW_FAULT_DISK) ? "folder" : NULL;
    w->n_clients_left = SW_CONNECTIONS;
    for (uint32_t i = 0; i < SW_CONNECTIONS; i++) {
        (void)sim_start(run_connection, (void *)(uintptr_t)i);
    }
    if (sw_may(w, SW_FAULT_STOP)) {
        uint64_t most = (uint64_t)10000000 << sim_below(&w->dice, 10);
        sim_event(sim_now_ns() + sim_roll(&w->dice) % most, at_sigterm, w, 0);
    }
    if (w->lends) {
        sim_event(sim_now_ns(), lend, w, 0);
    }
    int status = server_run((moe_engine *)&the_engine, &w->options, error, sizeof error);
    vh_end();
    while (w->n_clients_left > 0) {
        (void)sim_block(&w->n_clients_left, SIM_NEVER);
    }
    check_end(w, status, error);
}
