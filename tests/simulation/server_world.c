/* SPDX-License-Identifier: MIT */
#include "tests/simulation/server_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const sim_fault_names[] = {"fail", "hang", "tight", "lent", "memory",   "heap", "leave",
                                       "slow", "stop", "disk",  "room", "spurious", "leap"};
const uint32_t sim_n_faults = SW_FAULTS;
_Static_assert(sizeof sim_fault_names / sizeof sim_fault_names[0] == SW_FAULTS, "names of faults");

server_world the_server_world;

/* ---- What is chosen ---- */

/* Whether the seed has this kind of fault. */
static bool draws(const sim_plan *plan, sw_fault fault, uint32_t per_mille)
{
    sim_dice dice = sim_dice_of(plan->seed, 300 + fault);
    return sim_chance(&dice, per_mille) && (plan->without >> fault & 1) == 0;
}

static const uint32_t shares[SW_FAULTS] = {
    [SW_FAULT_FAIL] = 250,  [SW_FAULT_HANG] = 100,   [SW_FAULT_TIGHT] = 400,
    [SW_FAULT_LENT] = 250,  [SW_FAULT_MEMORY] = 150, [SW_FAULT_HEAP] = 150,
    [SW_FAULT_LEAVE] = 500, [SW_FAULT_SLOW] = 400,   [SW_FAULT_STOP] = 300,
    [SW_FAULT_DISK] = 250,  [SW_FAULT_ROOM] = 120,   [SW_FAULT_SPURIOUS] = 200,
    [SW_FAULT_LEAP] = 100,
};

bool sw_may(const server_world *w, sw_fault fault)
{
    return draws(w->plan, fault, shares[fault]);
}

sim_settings sim_world_begin(const sim_plan *plan)
{
    server_world *w = &the_server_world;
    memset(w, 0, sizeof *w);
    w->plan = plan;
    ve_begin(plan->seed);
    vh_begin();
    return (sim_settings){.seed = plan->schedule,
                          .max_events = 4000000,
                          .patience_ns = 1000000000u,
                          .spurious_per_mille = sw_may(w, SW_FAULT_SPURIOUS) ? 20 : 0,
                          .leap_per_mille = sw_may(w, SW_FAULT_LEAP) ? 5 : 0,
                          .trace = plan->trace,
                          .calm = plan->calm,
                          .most_fibers = 3 + SW_CONNECTIONS,
                          .look = sw_look,
                          .at_rest = sw_at_rest,
                          .user = w};
}

uint32_t sim_world_op(void)
{
    return the_server_world.next > 0 ? the_server_world.next - 1 : 0;
}

uint64_t sim_world_checks(void)
{
    return the_server_world.n_checks;
}

void sim_world_prepare(void)
{
}

static void choose_engine(server_world *w)
{
    virtual_engine *e = &the_engine;
    sim_dice *d = &w->dice;
    e->parallel = w->options.parallel = 1 + sim_below(d, 4);
    uint32_t all = e->parallel * VE_SESSION_PAGES;
    e->n_pages =
        sw_may(w, SW_FAULT_TIGHT)
            ? VE_SESSION_PAGES + sim_below(d, all - VE_SESSION_PAGES + VE_SESSION_PAGES / 2)
            : all;
    w->lends = sw_may(w, SW_FAULT_LENT);
    e->n_pages += w->lends ? sim_below(d, VE_SESSION_PAGES) : 0;
    e->fail_per_mille = sw_may(w, SW_FAULT_FAIL) ? 1 + sim_below(d, 60) : 0;
    e->hang_per_mille = sw_may(w, SW_FAULT_HANG) ? 1 + sim_below(d, 20) : 0;
    e->memory_per_mille = sw_may(w, SW_FAULT_MEMORY) ? 1 + sim_below(d, 40) : 0;
    e->step_ns = (uint64_t)1000000 << sim_below(d, 8);
    e->most_sampled = 1 + sim_below(d, 3);
    e->padding = sim_below(d, 4) == 0 ? sim_below(d, VE_MOST_PIECE - 2) : 0;
    bool is_slow = sim_below(d, 4) == 0 && sw_may(w, SW_FAULT_SLOW);
    e->info_ns = is_slow ? (uint64_t)10000000 << sim_below(d, 6) : 0;
    w->has_room = !sw_may(w, SW_FAULT_ROOM);
    if (!w->has_room) {
        server_memory_account account;
        server_memory_open(&account, e->parallel, 1); /* what connections take */
        e->program_bytes = (uint64_t)(account.most_connections + SERVER_REFUSED_CONNECTIONS) *
                               SERVER_CONNECTION_BYTES +
                           30000 + sim_below(d, 400000);
    }
    if (sw_may(w, SW_FAULT_HEAP)) {
        sim_heap_now()->refuse_at = 1 + sim_below(d, 1u << (4 + sim_below(d, 9)));
    }
    e->stepping = sw_stepping;
    e->following = sw_following;
    e->user = w;
}

/* A beginning that several prompts have, and then what is the request's alone. */
static void choose_prompt(server_world *w, sw_request *r, uint32_t index, sim_dice *d)
{
    sim_dice family = sim_dice_of(w->plan->seed, 400 + sim_below(d, 3));
    uint32_t shared = sim_below(d, 3) == 0 ? 0 : 8 + sim_below(d, 48);
    for (uint32_t i = 0; i < shared; i++) {
        r->tokens[r->n_tokens++] = (int32_t)sim_below(&family, VE_VOCABULARY);
    }
    r->tokens[r->n_tokens++] = (int32_t)(index / VE_VOCABULARY);
    r->tokens[r->n_tokens++] = (int32_t)(index % VE_VOCABULARY);
    for (uint32_t i = sim_below(d, 24); i > 0; i--) {
        r->tokens[r->n_tokens++] = (int32_t)sim_below(d, VE_VOCABULARY);
    }
}

static void write_body(sw_request *r)
{
    char body[SW_BODY_BYTES];
    size_t n = (size_t)snprintf(body, sizeof body,
                                "{\"temperature\":0,\"seed\":%llu,\"n\":%u,\"max_tokens\":%u,"
                                "\"stream\":%s,\"stop\":[",
                                (unsigned long long)r->seed, r->n, r->max_tokens,
                                r->streams ? "true" : "false");
    for (uint32_t i = 0; i < r->n_stops; i++) {
        n += (size_t)snprintf(body + n, sizeof body - n, "%s\"%s\"", i > 0 ? "," : "", r->stops[i]);
    }
    n += (size_t)snprintf(body + n, sizeof body - n, "],\"prompt\":[");
    for (size_t i = 0; i < r->n_tokens; i++) {
        n += (size_t)snprintf(body + n, sizeof body - n, i > 0 ? ",%d" : "%d", r->tokens[i]);
    }
    n += (size_t)snprintf(body + n, sizeof body - n, r->is_wrong ? "]" : "]}");
    memcpy(r->body, body, n + 1);
    r->how.body = r->body;
    r->how.size = n;
}

static void choose_request(server_world *w, uint32_t index)
{
    static const uint64_t times[] = {1000000, 20000000, 300000000, 5000000000};
    sw_request *r = &w->requests[index];
    sim_dice dice = sim_dice_of(w->plan->seed, 1000 + index), *d = &dice;
    choose_prompt(w, r, index, d);
    r->client = sim_below(d, SW_CLIENTS);
    r->seed = sim_below(d, 1000);
    r->n = sim_below(d, 3) == 0 ? 1 + sim_below(d, SW_MOST_CHOICES) : 1;
    r->max_tokens = 1 + sim_below(d, sim_below(d, 4) == 0 ? 120 : 20);
    r->n_stops = sim_below(d, 3) == 0 ? 1 + sim_below(d, SW_MOST_STOPS) : 0;
    for (uint32_t i = 0; i < r->n_stops; i++) { /* mostly text that is held back, and goes on */
        r->stops[i][0] = (char)('a' + sim_below(d, 26));
        for (uint32_t k = 1, n = sim_below(d, 4); k < n; k++) {
            r->stops[i][k] = (char)('a' + sim_below(d, 7));
        }
    }
    r->streams = sim_below(d, 2) == 0;
    r->is_wrong = sim_below(d, 20) == 0;
    write_body(r);
    r->how.path = "/v1/completions";
    if (sim_below(d, 12) == 0) { /* somebody looks at the page */
        static const char *const paths[] = {"/live", "/slots", "/metrics", "/v1/models"};
        r->how = (vh_request){.path = paths[sim_below(d, 4)]};
        r->n = 0;
    }
    r->how.pieces = 1 + sim_below(d, 3);
    r->how.most_at_once = 1u << (5 + sim_below(d, 12));
    bool leaves = sim_below(d, 3) == 0 && sw_may(w, SW_FAULT_LEAVE);
    r->how.leaves_ns = leaves ? sim_roll(d) % times[sim_below(d, 4)] : SIM_NEVER;
    bool is_slow = sim_below(d, 3) == 0 && sw_may(w, SW_FAULT_SLOW);
    r->how.slow_ns = is_slow ? sim_roll(d) % times[sim_below(d, 4)] : 0;
    r->how.most_at_once *= is_slow ? 32 : 1;
}

void sw_choose(server_world *w)
{
    w->dice = sim_dice_of(w->plan->seed, 80);
    choose_engine(w);
    w->n_requests = 2 + sim_below(&w->dice, sim_below(&w->dice, 6) == 0 ? 100 : 24);
    if (w->plan->n_ops != 0 && w->plan->n_ops < w->n_requests) {
        w->n_requests = w->plan->n_ops;
    }
    for (uint32_t i = 0; i < w->n_requests; i++) {
        choose_request(w, i);
    }
}

/* ---- The invariants ---- */

void sw_look(void *user)
{
    server_world *w = user;
    const server *srv = the_http.srv;
    w->n_checks++;
    (void)ve_pages_used();
    if (srv != NULL && the_engine.n_alive > the_engine.parallel) {
        sim_fail("%u sessions, and %u were planned", the_engine.n_alive, the_engine.parallel);
    }
}

/* Whether an exchange waits for news of a job that has some. */
static bool has_news(const server_exchange *e)
{
    const server_request *r = &e->request;
    bool some = false;
    for (uint32_t i = 0; i < r->n_jobs && i < e->reply.n_answers; i++) {
        const server_job *job = r->jobs[i];
        server_job_state state = e->reply.answers[i].state;
        some |= state != SERVER_DONE && (job->state != state || job->content.size > 0);
    }
    return some;
}

/* Clients' clocks have all that was read and written for them, or more: one that comes anew begins
 * at the lowest of the others. */
static void check_clocks(const server_queue *q)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < q->n_clients; i++) {
        sum += q->clients[i].clock;
    }
    const server_counts *c = &q->counts;
    if (sum < c->prompt_tokens - c->cached_tokens + c->written_tokens) {
        sim_fail("clients had tokens that no clock has");
    }
}

/* Nothing goes on before time has passed: nobody may sleep who has something to do. */
void sw_at_rest(void *user)
{
    server_world *w = user;
    server *srv = the_http.srv;
    if (srv == NULL) {
        return;
    }
    w->n_checks++;
    const server_queue *q = &srv->queue;
    if (sim_is_awaited(&q->work) && (q->first != NULL || q->ending || q->poked)) {
        sim_fail("lost wake-up: the engine's thread sleeps, and there is work");
    }
    const server_workshop *shop = &srv->workshop;
    if (sim_is_awaited(&shop->coming) && (shop->first != NULL || shop->ending)) {
        sim_fail("lost wake-up: the workshop sleeps, and there is work");
    }
    if (sim_is_awaited(&shop->coming) && sim_is_awaited(&shop->done)) {
        sim_fail("lost wake-up: somebody waits for a workshop that has done everything");
    }
    for (uint32_t i = 0; i < SW_CONNECTIONS; i++) {
        const server_exchange *e = vh_exchange(i);
        if (e != NULL && e->request.n_jobs > 0 && e->request.jobs[0] != NULL &&
            sim_is_awaited(&server_job_first(e->request.jobs[0])->changed) && has_news(e)) {
            sim_fail("lost wake-up: connection %u waits for news that are there", i);
        }
    }
    check_clocks(q);
    uint64_t taken = atomic_load(&srv->memory.taken);
    if (taken > srv->memory.most) {
        sim_fail("requests have %llu bytes, and %llu are planned", (unsigned long long)taken,
                 (unsigned long long)srv->memory.most);
    }
}

/* The request that a session works for: the longest prompt that its timeline begins with. */
static sw_request *owner_of(server_world *w, const moe_session *session)
{
    sw_request *best = NULL;
    for (uint32_t i = 0; i < w->n_requests; i++) {
        sw_request *r = &w->requests[i];
        if (r->made && r->n > 0 && r->n_tokens <= session->n &&
            memcmp(r->tokens, session->tokens, r->n_tokens * sizeof(int32_t)) == 0 &&
            (best == NULL || r->n_tokens > best->n_tokens)) {
            best = r;
        }
    }
    return best;
}

/* The job of a client that has left ends before the next step, or after it if it has just begun. */
void sw_stepping(const moe_session *session, void *user)
{
    server_world *w = user;
    sw_request *r = owner_of(w, session);
    if (r == NULL) {
        sim_fail("a step with a session that is no request's");
    }
    if (r->let_go && !session->cancelled && ++r->n_late_steps > r->n) {
        sim_fail("steps go on for request %td, which is over", r - w->requests);
    }
}

static const server_client *clock_of(const server_queue *q, uint64_t client)
{
    for (uint32_t i = 0; i < q->n_clients; i++) {
        if (q->clients[i].name == client) {
            return &q->clients[i];
        }
    }
    sim_fail("a client without a clock");
}

/* Nobody starves: a job begins when none waits, since the last step or longer, of a client who has
 * had less. */
void sw_following(const int32_t *tokens, size_t n, void *user)
{
    server_world *w = user;
    const server_queue *q = &the_http.srv->queue;
    const sw_request *r = NULL;
    for (uint32_t i = 0; i < w->n_requests && r == NULL; i++) {
        const sw_request *other = &w->requests[i];
        r = other->made && other->n_tokens == n && other->n > 0 &&
                    memcmp(other->tokens, tokens, n * sizeof *tokens) == 0
                ? other
                : NULL;
    }
    if (r == NULL) {
        sim_fail("a prompt that nobody has sent");
    }
    uint64_t clock = clock_of(q, r->client)->clock;
    for (const server_job *job = q->first; job != NULL; job = job->next) {
        bool can_begin = !job->cancelled && (job->leader == NULL || job->leader->n_written > 0);
        if (can_begin && job->submitted_ns < the_engine.stepped_ns &&
            clock_of(q, job->client)->clock < clock) {
            sim_fail("request %td begins before one of a client who has had less", r - w->requests);
        }
    }
}
