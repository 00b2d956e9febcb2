/* SPDX-License-Identifier: MIT */
#include "runtime/workers/worker_hook.h"

#include <stdlib.h>
#include <string.h>

#include "offload/layer_plan.h"
#include "runtime/base/alloc.h"
#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/base/moe_assert.h"
#include "runtime/pass/expert_form.h"
#include "runtime/pass/runner.h"
#include "runtime/workers/worker_links.h"

#define DEFAULT_TIMEOUT_NS UINT64_C(10000000000)
#define DEFAULT_PAUSE_NS   UINT64_C(1000000000)
/* While a pass waits for workers, it checks at this interval whether the step was cancelled. */
#define LOOK_NS UINT64_C(50000000)

/* Rows that a worker computes. */
typedef struct worker_job {
    moe_worker_link *link; /* NULL: its outputs have come, or are lost */
    uint64_t id;
    uint64_t sent_ns;
    uint32_t first, n_slots; /* in moe_workers.slots */
    uint32_t n_experts;
} worker_job;

struct moe_workers {
    moe_runner *runner;
    moe_pass_hook hook;
    moe_worker_links links;
    uint8_t *key;
    bool all;
    uint64_t last_id;
    moe_worker_choice choice;
    moe_workers_stats stats;
    const moe_worker_costs *costs[MOE_MOST_WORKERS];
    /* Of the current layer: */
    bool *resident;    /* [n_expert] */
    uint32_t *n_rows;  /* [n_expert]: rows of the pass that chose the expert */
    uint32_t *missing; /* [n_expert]: missing experts that workers have */
    uint32_t *holders; /* [n_expert]: of each of these, bits of the workers that have it */
    uint8_t *owners;   /* [n_expert]: of each of these, who computes it */
    uint32_t n_read;   /* further missing experts, which this engine reads */
    uint64_t begin_ns; /* when this engine began with its own experts */
    uint32_t n_pass_rows;
    uint8_t *owner;   /* [n_expert]: the worker's number, or MOE_WORKER_HERE */
    uint32_t *slots;  /* [max_rows * n_used]: row * n_used + rank, job by job */
    float *outs;      /* [max_rows * n_used][n_in]: the outputs of slots */
    bool *is_there;   /* [max_rows * n_used]: whether the output has come */
    worker_job *jobs; /* [max_jobs] */
    uint32_t n_slots, n_jobs, max_jobs;
    uint32_t *rows;   /* [max_rows]: of the job that is being made */
    float *x;         /* [max_rows][n_in]: what the experts read, on the host */
    uint32_t *chosen; /* [max_rows * n_used]: keeps the layer's choice while lost outputs are
                       * computed */
};

/* ---- Who computes which expert ---- */

/* Counts the rows of each chosen expert; returns whether any of these experts is missing. */
static bool count_rows(moe_workers *w, const moe_pass *pass, uint32_t layer)
{
    const moe_model_config *c = w->runner->config;
    const uint32_t *chosen = w->runner->buffers.chosen;
    bool any = false;
    moe_expert_store_residents(w->runner->experts, layer, w->resident);
    memset(w->n_rows, 0, c->n_expert * sizeof *w->n_rows);
    for (uint32_t s = 0; s < pass->n_rows * c->n_expert_used; s++) {
        if (chosen[s] < c->n_expert) {
            w->n_rows[chosen[s]]++;
            any = any || !w->resident[chosen[s]];
        }
    }
    return any;
}

/* Lists the missing experts that a worker has, those with most rows first. */
static moe_worker_layer list_missing(moe_workers *w, const moe_pass *pass, uint32_t layer)
{
    moe_worker_layer list = {.n_pass_rows = pass->n_rows,
                             .holders = w->holders,
                             .workers = w->costs,
                             .n_workers = w->links.n};
    for (uint32_t e = 0; e < w->runner->config->n_expert; e++) {
        uint32_t holders = 0;
        w->owner[e] = MOE_WORKER_HERE;
        if (w->n_rows[e] == 0 || w->resident[e]) {
            continue;
        }
        for (uint32_t i = 0; i < w->links.n; i++) {
            bool has = moe_worker_has(&w->links, &w->links.list[i], layer, e);
            holders |= (uint32_t)has << i;
        }
        if (holders == 0) {
            list.n_read++;
            continue;
        }
        uint32_t at = list.n++;
        for (; at > 0 && w->n_rows[w->missing[at - 1]] < w->n_rows[e]; at--) {
            w->missing[at] = w->missing[at - 1];
            w->holders[at] = w->holders[at - 1];
        }
        w->missing[at] = e;
        w->holders[at] = holders;
    }
    return list;
}

/* Returns whether a worker computes any expert of the layer. */
static bool choose_owners(moe_workers *w, const moe_pass *pass, uint32_t layer)
{
    const moe_worker_layer list = list_missing(w, pass, layer);
    bool any = false;
    moe_worker_choose(&w->choice, &list, w->all, w->owners);
    w->n_read = list.n_read;
    for (uint32_t i = 0; i < list.n; i++) {
        w->owner[w->missing[i]] = w->owners[i];
        w->n_read += w->owners[i] == MOE_WORKER_HERE;
        any = any || w->owners[i] != MOE_WORKER_HERE;
    }
    return any;
}

/* ---- Sending ---- */

/* Fills a job's payload and slots with rows of the pass, from `first` on: up to max_rows rows that
 * chose an expert of this worker. Returns the row at which the next job begins. */
static uint32_t fill_job(moe_workers *w, const moe_pass *pass, uint8_t owner, uint32_t first,
                         uint32_t max_rows, worker_job *job, uint32_t *n_rows)
{
    const uint32_t n_used = w->runner->config->n_expert_used;
    const uint32_t *chosen = w->runner->buffers.chosen;
    uint32_t r = first;
    *n_rows = 0;
    job->first = w->n_slots;
    for (; r < pass->n_rows && *n_rows < max_rows; r++) {
        uint32_t before = w->n_slots;
        for (uint32_t k = 0; k < n_used; k++) {
            uint32_t slot = r * n_used + k;
            if (chosen[slot] < w->runner->config->n_expert && w->owner[chosen[slot]] == owner) {
                w->is_there[w->n_slots] = false;
                w->slots[w->n_slots++] = slot;
            }
        }
        if (w->n_slots > before) {
            w->rows[(*n_rows)++] = r;
        }
    }
    job->n_slots = w->n_slots - job->first;
    return r;
}

static int send_job(moe_workers *w, uint32_t layer, uint8_t owner, worker_job *job, uint32_t n_rows,
                    moe_error *err)
{
    const moe_model_config *c = w->runner->config;
    const moe_pass_buffers *b = &w->runner->buffers;
    const size_t n_used = c->n_expert_used;
    const size_t n_in = c->n_expert_in;
    uint8_t *payload;
    size_t n_bytes;
    uint8_t *message = moe_message_new(
        MOE_MESSAGE_JOB, job->id, moe_job_bytes(&w->links.identity, n_rows), &payload, &n_bytes);
    if (message == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for a worker's job of %u rows", n_rows);
    }
    const moe_job_head head = {.layer = layer, .n_rows = n_rows};
    memcpy(payload, &head, sizeof head);
    uint8_t *x = payload + sizeof head;
    uint8_t *chosen = x + n_rows * n_in * sizeof(float);
    uint8_t *weights = chosen + n_rows * n_used * sizeof(uint32_t);
    for (uint32_t i = 0; i < n_rows; i++) {
        memcpy(x + i * n_in * sizeof(float), w->x + w->rows[i] * n_in, n_in * sizeof(float));
        memcpy(weights + i * n_used * sizeof(float), b->chosen_weights + w->rows[i] * n_used,
               n_used * sizeof(float));
        for (uint32_t k = 0; k < n_used; k++) {
            uint32_t expert = b->chosen[w->rows[i] * n_used + k];
            bool is_its = expert < c->n_expert && w->owner[expert] == owner;
            expert = is_its ? expert : MOE_PLAN_NO_EXPERT;
            memcpy(chosen + (i * n_used + k) * sizeof expert, &expert, sizeof expert);
        }
    }
    moe_message_seal(message, n_bytes);
    job->sent_ns = moe_now_ns();
    w->links.wire->ops->send(w->links.wire, job->link->peer, message, n_bytes);
    w->stats.n_jobs++;
    w->stats.bytes_sent += n_bytes;
    return MOE_OK;
}

/* Sends a worker its rows, in as many jobs as they need. */
static int send_to(moe_workers *w, const moe_pass *pass, uint32_t layer, uint8_t owner,
                   moe_error *err)
{
    moe_worker_link *link = &w->links.list[owner];
    uint32_t n_experts = 0;
    for (uint32_t e = 0; e < w->runner->config->n_expert; e++) {
        n_experts += w->owner[e] == owner;
    }
    for (uint32_t r = 0; r < pass->n_rows && n_experts > 0;) {
        MOE_ASSERT(w->n_jobs < w->max_jobs);
        worker_job *job = &w->jobs[w->n_jobs];
        uint32_t n_rows;
        *job = (worker_job){.link = link, .id = ++w->last_id, .n_experts = n_experts};
        r = fill_job(w, pass, owner, r, link->max_rows, job, &n_rows);
        if (n_rows > 0) {
            MOE_TRY(send_job(w, layer, owner, job, n_rows, err));
            w->n_jobs++;
        }
    }
    w->stats.n_experts += n_experts;
    return MOE_OK;
}

/* Takes messages that came between layers. Answers among them belong to cancelled steps and are
 * dropped. */
static void hear(moe_workers *w)
{
    moe_worker_answer late;
    moe_worker_news news;
    while ((news = moe_worker_links_next(&w->links, 0, &late)) != MOE_WORKERS_QUIET) {
        if (news == MOE_WORKERS_ANSWER) {
            moe_worker_answer_free(&late);
        }
    }
}

/* Takes experts out of the layer's plan, and sends their rows. */
static int send_out(void *context, moe_runner *runner, const moe_pass *pass, uint32_t layer,
                    moe_error *err)
{
    moe_workers *w = context;
    const moe_model_config *c = runner->config;
    moe_pass_buffers *b = &runner->buffers;
    w->n_slots = w->n_jobs = 0;
    w->begin_ns = 0;
    hear(w);
    if (!count_rows(w, pass, layer)) {
        return MOE_OK;
    }
    if (!choose_owners(w, pass, layer)) {
        w->begin_ns = moe_now_ns();
        return MOE_OK;
    }
    MOE_TRY(runner->device->ops->download(runner->device, w->x, moe_experts_x(runner, layer),
                                          (size_t)pass->n_rows * c->n_expert_in * sizeof(float),
                                          err));
    for (uint32_t i = 0; i < w->links.n; i++) {
        MOE_TRY(send_to(w, pass, layer, (uint8_t)i, err));
    }
    for (uint32_t s = 0; s < pass->n_rows * c->n_expert_used; s++) {
        if (b->chosen[s] < c->n_expert && w->owner[b->chosen[s]] != MOE_WORKER_HERE) {
            w->chosen[s] = b->chosen[s];
            b->chosen[s] = MOE_PLAN_NO_EXPERT;
        }
    }
    w->stats.n_rows += w->n_slots;
    w->n_pass_rows = pass->n_rows;
    w->begin_ns = moe_now_ns();
    return MOE_OK;
}

/* ---- Results ---- */

static void lose_jobs(moe_workers *w, const moe_worker_link *link)
{
    for (uint32_t i = 0; i < w->n_jobs; i++) {
        if (w->jobs[i].link == link) {
            w->stats.n_lost_experts += w->jobs[i].n_experts;
            w->jobs[i].link = NULL;
        }
    }
}

static worker_job *job_of(moe_workers *w, const moe_worker_answer *answer)
{
    for (uint32_t i = 0; i < w->n_jobs; i++) {
        if (w->jobs[i].link == answer->from && w->jobs[i].id == answer->message.id) {
            return &w->jobs[i];
        }
    }
    return NULL;
}

static void take_answer(moe_workers *w, const moe_worker_answer *answer)
{
    const moe_message *message = &answer->message;
    worker_job *job = job_of(w, answer);
    moe_result_head head;
    char text[128];
    if (job == NULL) {
        return; /* the answer belongs to a cancelled step */
    }
    bool fits = message->kind == MOE_MESSAGE_RESULT &&
                message->n_bytes == moe_result_bytes(&w->links.identity, job->n_slots);
    if (fits) {
        memcpy(&head, message->payload, sizeof head);
        fits = head.n_outs == job->n_slots;
    }
    if (!fits) {
        moe_message_text(message, text, sizeof text);
        moe_worker_leave_out(&w->links, answer->from,
                             message->kind == MOE_MESSAGE_FAILED ? text : "its results do not fit");
        return;
    }
    const size_t n_in = w->runner->config->n_expert_in;
    memcpy(w->outs + job->first * n_in, message->payload + sizeof head,
           job->n_slots * n_in * sizeof(float));
    memset(w->is_there + job->first, true, job->n_slots * sizeof *w->is_there);
    moe_worker_costs_note(&job->link->costs, w->n_pass_rows, job->n_experts,
                          answer->time_ns - job->sent_ns);
    w->stats.bytes_received += message->n_bytes;
    job->link = NULL;
}

/* Leaves out workers that are gone or took too long for a job; returns whether any job is under
 * way. */
static bool look_at_jobs(moe_workers *w)
{
    uint64_t now = moe_now_ns();
    bool any = false;
    for (uint32_t i = 0; i < w->n_jobs; i++) {
        moe_worker_link *link = w->jobs[i].link;
        if (link == NULL) {
            continue;
        }
        if (link->state == MOE_WORKER_READY && now > w->jobs[i].sent_ns + w->links.timeout_ns) {
            moe_worker_leave_out(&w->links, link, "it does not answer");
        }
        if (link->state != MOE_WORKER_READY) {
            lose_jobs(w, link);
        } else {
            any = true;
        }
    }
    return any;
}

static int wait_for_results(moe_workers *w, const moe_pass *pass, moe_error *err)
{
    moe_worker_answer answer;
    uint64_t begin = moe_now_ns();
    while (look_at_jobs(w)) {
        if (pass->is_cancelled != NULL && pass->is_cancelled(pass->cancel_user)) {
            w->n_jobs = 0;
            return moe_fail(err, MOE_ERR_CANCELLED, "the step was cancelled");
        }
        if (moe_worker_links_next(&w->links, LOOK_NS, &answer) == MOE_WORKERS_ANSWER) {
            take_answer(w, &answer);
            moe_worker_answer_free(&answer);
        }
    }
    w->stats.wait_ns += moe_now_ns() - begin;
    return MOE_OK;
}

/* Moves the slots whose outputs have come to the front; returns how many. */
static uint32_t gather_outs(moe_workers *w)
{
    const size_t n_in = w->runner->config->n_expert_in;
    uint32_t n = 0;
    for (uint32_t i = 0; i < w->n_slots; i++) {
        if (w->is_there[i]) {
            memmove(w->outs + n * n_in, w->outs + i * n_in, n_in * sizeof(float));
            uint32_t slot = w->slots[i];
            w->slots[i] = w->slots[n];
            w->slots[n] = slot;
            n++;
        }
    }
    return n;
}

/* Computes the slots that workers did not deliver: those from the n-th on. */
static int compute_lost(moe_workers *w, const moe_pass *pass, uint32_t layer, uint32_t n,
                        moe_error *err)
{
    moe_pass_buffers *b = &w->runner->buffers;
    for (uint32_t s = 0; s < pass->n_rows * w->runner->config->n_expert_used; s++) {
        b->chosen[s] = MOE_PLAN_NO_EXPERT;
    }
    for (uint32_t i = n; i < w->n_slots; i++) {
        b->chosen[w->slots[i]] = w->chosen[w->slots[i]];
    }
    return moe_layer_compute(w->runner, pass, layer, err);
}

static int collect(void *context, moe_runner *runner, const moe_pass *pass, uint32_t layer,
                   moe_error *err)
{
    moe_workers *w = context;
    if (w->begin_ns != 0) {
        moe_worker_costs_note(&w->choice.here, pass->n_rows, w->n_read + 1,
                              moe_now_ns() - w->begin_ns);
    }
    if (w->n_jobs == 0) {
        return MOE_OK;
    }
    MOE_TRY(wait_for_results(w, pass, err));
    uint32_t n = gather_outs(w);
    if (n > 0) {
        MOE_TRY(runner->device->ops->scatter(runner->device, w->outs, runner->config->n_expert_in,
                                             w->slots, n,
                                             runner->buffers.values[MOE_VALUE_RANK_OUT], err));
    }
    return n < w->n_slots ? compute_lost(w, pass, layer, n, err) : MOE_OK;
}

static int before_pass(void *context, moe_runner *runner, const moe_pass *pass, moe_error *err)
{
    moe_workers *w = context;
    (void)runner, (void)pass, (void)err;
    moe_worker_links_tend(&w->links);
    return MOE_OK;
}

/* ---- Opening ---- */

static int allocate(moe_workers *w, moe_error *err)
{
    const moe_model_config *c = w->runner->config;
    const size_t max_rows = w->runner->buffers.max_rows;
    const size_t n_slots = max_rows * c->n_expert_used;
    /* A job has at least one row. */
    w->max_jobs = (uint32_t)max_rows * w->links.n;
    w->resident = moe_calloc(c->n_expert, sizeof *w->resident);
    w->n_rows = moe_calloc(c->n_expert, sizeof *w->n_rows);
    w->missing = moe_calloc(c->n_expert, sizeof *w->missing);
    w->holders = moe_calloc(c->n_expert, sizeof *w->holders);
    w->owners = moe_calloc(c->n_expert, sizeof *w->owners);
    w->owner = moe_calloc(c->n_expert, sizeof *w->owner);
    w->slots = moe_calloc(n_slots, sizeof *w->slots);
    w->outs = moe_calloc(n_slots * c->n_expert_in, sizeof *w->outs);
    w->is_there = moe_calloc(n_slots, sizeof *w->is_there);
    w->jobs = moe_calloc(w->max_jobs, sizeof *w->jobs);
    w->rows = moe_calloc(max_rows, sizeof *w->rows);
    w->x = moe_calloc(max_rows * c->n_expert_in, sizeof *w->x);
    w->chosen = moe_calloc(n_slots, sizeof *w->chosen);
    return w->resident != NULL && w->n_rows != NULL && w->owner != NULL && w->slots != NULL &&
                   w->outs != NULL && w->is_there != NULL && w->jobs != NULL && w->rows != NULL &&
                   w->x != NULL && w->chosen != NULL && w->missing != NULL && w->holders != NULL &&
                   w->owners != NULL
               ? MOE_OK
               : moe_fail(err, MOE_ERR_MEMORY, "no memory for workers");
}

uint64_t moe_workers_bytes(const moe_model_config *c, uint32_t max_rows)
{
    uint64_t row = (uint64_t)c->n_expert_in * sizeof(float);
    uint64_t slot = 2 * sizeof(uint32_t) + sizeof(bool);
    uint64_t outs = row * c->n_expert_used;
    /* Rows and outputs, once in arrays and once in messages under way. */
    return max_rows *
           (2 * row + 2 * outs + slot * c->n_expert_used + MOE_MOST_WORKERS * sizeof(worker_job));
}

static int open_parts(moe_workers *w, const moe_workers_parts *parts, moe_error *err)
{
    const moe_model_config *c = w->runner->config;
    w->key = moe_calloc(parts->key_bytes, 1);
    if (w->key == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for workers");
    }
    if (parts->key_bytes > 0) {
        memcpy(w->key, parts->key, parts->key_bytes);
    }
    w->links.key = (moe_worker_key){w->key, parts->key_bytes};
    w->links.identity = (moe_worker_identity){.fingerprint = parts->fingerprint,
                                              .n_layer = c->n_layer,
                                              .n_expert = c->n_expert,
                                              .n_used = c->n_expert_used,
                                              .n_in = c->n_expert_in};
    w->links.timeout_ns = parts->timeout_ns != 0 ? parts->timeout_ns : DEFAULT_TIMEOUT_NS;
    w->links.pause_ns = parts->pause_ns != 0 ? parts->pause_ns : DEFAULT_PAUSE_NS;
    w->links.log = parts->log;
    w->links.user = parts->user;
    for (size_t i = 0; i < parts->n_addresses; i++) {
        MOE_TRY(moe_worker_links_add(&w->links, parts->addresses[i], err));
    }
    for (uint32_t i = 0; i < w->links.n; i++) {
        w->costs[i] = &w->links.list[i].costs;
    }
    MOE_TRY(allocate(w, err));
    MOE_TRY(moe_worker_links_join(&w->links, err));
    w->hook = (moe_pass_hook){.order = MOE_HOOK_STAND_IN,
                              .passes = MOE_HOOK_ON_TARGET,
                              .needs_host_routing = true,
                              .context = w,
                              .before_pass = before_pass,
                              .before_plan = send_out,
                              .collect_beside = collect};
    return moe_runner_add_hook(w->runner, &w->hook, err);
}

int moe_workers_open(moe_workers **out, const moe_workers_parts *parts, moe_error *err)
{
    moe_workers *w = moe_calloc(1, sizeof *w);
    *out = NULL;
    if (w == NULL) {
        parts->wire->ops->close(parts->wire);
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for workers");
    }
    w->links.wire = parts->wire;
    w->runner = parts->runner;
    w->all = parts->all;
    int status = open_parts(w, parts, err);
    if (status != MOE_OK) {
        moe_workers_close(&w);
    }
    *out = w;
    return status;
}

void moe_workers_close(moe_workers **workers)
{
    moe_workers *w = *workers;
    if (w == NULL) {
        return;
    }
    moe_runner_remove_hook(w->runner, &w->hook);
    moe_worker_links_close(&w->links);
    void *const arrays[] = {w->resident, w->n_rows, w->missing, w->holders,  w->owners,
                            w->owner,    w->slots,  w->outs,    w->is_there, w->jobs,
                            w->rows,     w->x,      w->chosen,  w->key};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        free(arrays[i]);
    }
    free(w);
    *workers = NULL;
}

void moe_workers_get_stats(const moe_workers *w, moe_workers_stats *stats)
{
    *stats = w->stats;
    stats->n_workers = w->links.n;
    stats->n_lost_workers = w->links.n_lost;
    for (uint32_t i = 0; i < w->links.n; i++) {
        stats->n_ready += w->links.list[i].state == MOE_WORKER_READY;
    }
}
