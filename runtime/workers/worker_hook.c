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
#include "runtime/workers/worker_block.h"
#include "runtime/workers/worker_jobs.h"
#include "runtime/workers/worker_owners.h"

#define DEFAULT_TIMEOUT_NS UINT64_C(10000000000)
#define DEFAULT_PAUSE_NS   UINT64_C(1000000000)

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

/* ---- Sending ---- */

/* Fills a job's slots with rows of the pass, from `first` on: up to max_rows rows that chose an
 * expert of this worker. Returns the row at which the next job begins. */
static uint32_t fill_job(moe_workers *w, const moe_pass *pass, uint8_t owner, uint32_t first,
                         uint32_t max_rows, worker_job *job, uint32_t *n_rows)
{
    const uint32_t n_used = w->runner->config->n_expert_used;
    const uint32_t *chosen = w->runner->buffers.chosen;
    const uint32_t most = moe_workers_most_outs(w);
    uint32_t r = first;
    *n_rows = 0;
    job->first = w->n_slots;
    for (; r < pass->n_rows && *n_rows < max_rows && w->n_slots - job->first < most; r++) {
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
    job->n_outs = w->n_slots - job->first;
    return r;
}

static int send_job(moe_workers *w, uint32_t layer, uint8_t owner, worker_job *job, uint32_t n_rows,
                    moe_error *err)
{
    const moe_model_config *c = w->runner->config;
    const moe_pass_buffers *b = &w->runner->buffers;
    const size_t n_used = c->n_expert_used;
    const size_t n_in = c->n_expert_in;
    worker_job_parts parts;
    MOE_TRY(moe_workers_new_job(w, layer, n_rows, &parts, err));
    for (uint32_t i = 0; i < n_rows; i++) {
        moe_rows_pack(parts.form, w->x + w->rows[i] * n_in, i, n_rows, c->n_expert_in, parts.x);
        memcpy(parts.weights + i * n_used * sizeof(float), b->chosen_weights + w->rows[i] * n_used,
               n_used * sizeof(float));
        for (uint32_t k = 0; k < n_used; k++) {
            uint32_t expert = b->chosen[w->rows[i] * n_used + k];
            bool is_its = expert < c->n_expert && w->owner[expert] == owner;
            expert = is_its ? expert : MOE_PLAN_NO_EXPERT;
            memcpy(parts.chosen + (i * n_used + k) * sizeof expert, &expert, sizeof expert);
        }
    }
    moe_workers_send(w, job, &parts);
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
        *job = (worker_job){.link = link, .n_experts = n_experts};
        r = fill_job(w, pass, owner, r, link->max_rows, job, &n_rows);
        if (n_rows > 0) {
            MOE_TRY(send_job(w, layer, owner, job, n_rows, err));
            w->n_jobs++;
        }
    }
    w->stats.n_experts += n_experts;
    link->n_experts += n_experts;
    return MOE_OK;
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
    moe_workers_hear(w);
    if (pass->panel != NULL) {
        moe_worker_links_tend(&w->links); /* before_pass() is not called */
    }
    const bool serves = pass->panel == NULL || pass->panel->part == MOE_PANEL_LAYER;
    if (!serves || !count_rows(w, pass, layer)) {
        return MOE_OK;
    }
    if (!moe_workers_choose(w, layer, pass->n_rows)) {
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
    w->n_pass_rows = pass->n_rows;
    w->begin_ns = moe_now_ns();
    return MOE_OK;
}

/* ---- Results ---- */

static int wait_for_results(moe_workers *w, const moe_pass *pass, moe_error *err)
{
    uint64_t begin = moe_now_ns();
    moe_workers_hear(w); /* what came while this engine computed is not overdue */
    while (moe_workers_look(w)) {
        int status = moe_workers_listen(w, pass, err);
        if (status != MOE_OK) {
            w->n_jobs = 0;
            return status;
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
    moe_workers_rebalance(w);
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
    if (w->rebalance > 0) {
        w->heat = moe_calloc((size_t)c->n_layer * c->n_expert, sizeof *w->heat);
        MOE_TRY(w->heat != NULL ? MOE_OK : moe_fail(err, MOE_ERR_MEMORY, "no memory for workers"));
    }
    MOE_TRY(moe_worker_block_open(&w->block, c, (uint32_t)max_rows, err));
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
    /* What is counted of each expert, and bits of it at each worker, some times. */
    uint64_t experts = (uint64_t)c->n_layer * c->n_expert * (sizeof(float) + MOE_MOST_WORKERS / 2);
    /* Rows and outputs, once in arrays and once in messages under way. */
    return experts +
           max_rows * (2 * row + 2 * outs + slot * c->n_expert_used +
                       MOE_MOST_WORKERS * sizeof(worker_job)) +
           moe_worker_block_bytes(c, max_rows);
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
                              .takes_panels = true,
                              .block_stages = &moe_worker_block_stages,
                              .context = w,
                              .before_pass = before_pass,
                              .before_plan = send_out,
                              .collect_beside = collect};
    moe_expert_store_skip(w->runner->experts, moe_workers_take_over, w);
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
    w->map = parts->map;
    w->all = parts->all;
    w->rebalance = parts->rebalance;
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
    moe_expert_store_skip(w->runner->experts, NULL, NULL);
    moe_worker_block_free(&w->block);
    moe_worker_links_close(&w->links);
    void *const arrays[] = {w->resident, w->n_rows, w->missing, w->holders,  w->owners,
                            w->owner,    w->slots,  w->outs,    w->is_there, w->jobs,
                            w->rows,     w->x,      w->chosen,  w->key,      w->heat};
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
