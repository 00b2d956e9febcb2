/* SPDX-License-Identifier: MIT */
/* Workers in a panel's blocks. Once a block is planned, each missing expert that a worker has gets
 * an owner, as in a layer. Then pairs of an owned expert and a row are sent in the plan's order: in
 * windows, a window's pairs of one owner as one or more jobs. A window is sent as soon as there are
 * free places for its outputs. So workers compute while this engine computes experts of its own,
 * and waits only for the pair whose turn it is.
 *
 *    plan's pairs   | taken | outputs have come or are awaited | not sent
 *                   n_taken                               n_sent
 *
 * If a job is lost, the expert at whose turn that shows is computed here, and the pairs behind it
 * are sent anew. */
#include "runtime/workers/worker_block.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/base/moe_assert.h"
#include "runtime/pass/panel_block.h"
#include "runtime/workers/worker_jobs.h"
#include "runtime/workers/worker_owners.h"

#define N_WINDOWS 4u /* into which the places are divided */

/* ---- Memory ---- */

/* The places are about as many as a half of a pass has outputs, and whole windows: a window takes
 * the places of one that was taken to its end, because that one's `sent` is then read no more. */
static uint32_t most_pairs(const moe_model_config *c, uint32_t max_rows)
{
    const uint32_t n = max_rows * c->n_expert_used / 2 / N_WINDOWS * N_WINDOWS;
    return n > N_WINDOWS ? n : N_WINDOWS;
}

int moe_worker_block_open(worker_block *block, const moe_model_config *c, uint32_t max_rows,
                          moe_error *err)
{
    const uint32_t n = most_pairs(c, max_rows);
    block->max_pairs = n;
    block->owners = moe_calloc(c->n_expert, sizeof *block->owners);
    block->outs = moe_calloc((size_t)n * c->n_expert_in, sizeof *block->outs);
    block->states = moe_calloc(n, sizeof *block->states);
    block->sent = moe_calloc(n, sizeof *block->sent);
    block->pairs = moe_calloc(n, sizeof *block->pairs);
    block->pair_owners = moe_calloc(n, sizeof *block->pair_owners);
    block->jobs = moe_calloc(n, sizeof *block->jobs);
    return block->owners != NULL && block->outs != NULL && block->states != NULL &&
                   block->sent != NULL && block->pairs != NULL && block->pair_owners != NULL &&
                   block->jobs != NULL
               ? MOE_OK
               : moe_fail(err, MOE_ERR_MEMORY, "no memory for workers");
}

void moe_worker_block_free(worker_block *block)
{
    free(block->owners);
    free(block->outs);
    free(block->states);
    free(block->sent);
    free(block->pairs);
    free(block->pair_owners);
    free(block->jobs);
}

uint64_t moe_worker_block_bytes(const moe_model_config *c, uint32_t max_rows)
{
    const uint64_t row = (uint64_t)c->n_expert_in * sizeof(float);
    /* Outputs once in their places and once in messages, rows in messages. */
    return most_pairs(c, max_rows) *
           (3 * row + 2 * sizeof(uint32_t) + 2 * sizeof(uint8_t) + sizeof(worker_job));
}

/* ---- Who computes what ---- */

static bool is_ready(const moe_workers *w, uint8_t owner)
{
    return w->links.list[owner].state == MOE_WORKER_READY;
}

/* Gives the plan's experts to owners. */
static void choose(moe_workers *w, moe_panel_block *panel, uint32_t layer)
{
    const moe_layer_plan *plan = &panel->plan;
    worker_block *block = &w->block;
    moe_expert_store_residents(w->runner->experts, layer, w->resident);
    memset(w->n_rows, 0, w->runner->config->n_expert * sizeof *w->n_rows);
    for (uint32_t i = 0; i < plan->n_experts; i++) {
        w->n_rows[plan->experts[i]] = plan->first[i + 1] - plan->first[i];
    }
    (void)moe_workers_choose(w, layer, MOE_WORKER_BLOCK_ROWS);
    block->n_left = 0;
    memset(block->n_experts, 0, sizeof block->n_experts);
    memset(block->busy_ns, 0, sizeof block->busy_ns);
    for (uint32_t i = 0; i < plan->n_experts; i++) {
        const uint8_t owner = w->owner[plan->experts[i]];
        block->owners[i] = owner;
        panel->elsewhere[i] = owner != MOE_WORKER_HERE;
        if (panel->elsewhere[i]) {
            block->n_experts[owner]++;
            w->links.list[owner].n_experts++;
            block->n_left++;
        }
    }
    w->stats.n_experts += block->n_left;
    block->n_read = w->n_read;
    block->begin_ns = moe_now_ns();
    block->wait_ns = 0;
}

/* Begins to send anew, from the next expert on. Answers to earlier jobs are dropped. */
static void restart(worker_block *block, const moe_panel_block *panel)
{
    block->is_broken = false;
    block->n_jobs = block->n_sent = block->n_taken = 0;
    block->next_entry = panel->n_served;
    block->next_pair = panel->plan.first[panel->n_served] + panel->n_begun;
}

/* ---- Sending ---- */

/* Lists the next pair that a worker computes; false: there is no more. */
static bool next_pair(worker_block *block, const moe_panel_block *panel, uint32_t *pair,
                      uint8_t *owner)
{
    const moe_layer_plan *plan = &panel->plan;
    while (block->next_entry < plan->n_experts &&
           (!panel->elsewhere[block->next_entry] ||
            block->next_pair == plan->first[block->next_entry + 1])) {
        block->next_pair = plan->first[++block->next_entry];
    }
    if (block->next_entry == plan->n_experts) {
        return false;
    }
    *owner = block->owners[block->next_entry];
    *pair = block->next_pair++;
    return true;
}

/* The plan's entry that has the pair, which is not before entry *entry. */
static uint32_t entry_of(const moe_layer_plan *plan, uint32_t pair, uint32_t *entry)
{
    while (plan->first[*entry + 1] <= pair) {
        ++*entry;
    }
    return *entry;
}

/* Sends a job of the pairs [n]. */
static int send_pairs(moe_workers *w, const moe_pass *pass, worker_job *job, const uint32_t *pairs,
                      moe_error *err)
{
    const moe_panel_block *panel = pass->panel->block;
    const moe_model_config *c = w->runner->config;
    const size_t n_used = c->n_expert_used, n_in = c->n_expert_in;
    worker_job_parts parts;
    uint32_t entry = 0, last = UINT32_MAX;
    MOE_TRY(moe_panel_block_inputs(w->runner, pass, pairs, job->n_outs, w->x, err));
    MOE_TRY(moe_workers_new_job(w, pass->panel->layer, job->n_outs, &parts, err));
    memset(parts.chosen, 0xff, job->n_outs * n_used * sizeof(uint32_t));
    _Static_assert(MOE_PLAN_NO_EXPERT == UINT32_MAX, "all bits are set");
    memset(parts.weights, 0, job->n_outs * n_used * sizeof(float));
    for (uint32_t i = 0; i < job->n_outs; i++) {
        const uint32_t expert = panel->plan.experts[entry_of(&panel->plan, pairs[i], &entry)];
        const float weight = panel->weights[panel->plan.ranked_slots[pairs[i]]];
        memcpy(parts.chosen + i * n_used * sizeof expert, &expert, sizeof expert);
        memcpy(parts.weights + i * n_used * sizeof weight, &weight, sizeof weight);
        moe_rows_pack(parts.form, w->x + i * n_in, i, parts.n_rows, c->n_expert_in, parts.x);
        job->n_experts += expert != last;
        last = expert;
    }
    moe_workers_send(w, job, &parts);
    return MOE_OK;
}

/* Sends the pairs of one owner among the window's n pairs, the first of which is pair number
 * `first` of those sent. *at: where the next job's list of places begins. If the owner is gone, its
 * pairs are lost. */
static int send_to(moe_workers *w, const moe_pass *pass, uint8_t owner, uint32_t first, uint32_t n,
                   uint32_t *at, moe_error *err)
{
    worker_block *block = &w->block;
    moe_worker_link *link = &w->links.list[owner];
    const uint32_t max_rows = w->runner->buffers.max_rows;
    uint32_t most = moe_workers_most_outs(w);
    most = most < link->max_rows ? most : link->max_rows;
    most = most < max_rows ? most : max_rows;
    for (uint32_t i = 0; i < n;) {
        worker_job job = {.link = link, .first = *at};
        for (; i < n && job.n_outs < most; i++) {
            if (block->pair_owners[i] == owner) {
                w->rows[job.n_outs++] = block->pairs[i];
                block->sent[(*at)++ % block->max_pairs] = first + i;
            }
        }
        if (job.n_outs > 0 && !is_ready(w, owner)) {
            moe_workers_accept_pairs(w, &job, NULL, 0);
        } else if (job.n_outs > 0) {
            MOE_TRY(send_pairs(w, pass, &job, w->rows, err));
            MOE_ASSERT(block->n_jobs < block->max_pairs); /* each has a pair that waits */
            block->jobs[block->n_jobs++] = job;
        }
    }
    return MOE_OK;
}

/* Sends the next window; false in *any: there is nothing more to send. */
static int send_window(moe_workers *w, const moe_pass *pass, bool *any, moe_error *err)
{
    worker_block *block = &w->block;
    const uint32_t first = block->n_sent, most = block->max_pairs / N_WINDOWS;
    uint32_t n = 0, at = first;
    while (n < most &&
           next_pair(block, pass->panel->block, &block->pairs[n], &block->pair_owners[n])) {
        block->states[(first + n) % block->max_pairs] = PAIR_WAITS;
        n++;
    }
    block->n_sent += n;
    for (uint32_t i = 0; i < w->links.n && n > 0; i++) {
        MOE_TRY(send_to(w, pass, (uint8_t)i, first, n, &at, err));
    }
    *any = n > 0;
    return MOE_OK;
}

/* Sends windows as long as there are places for their outputs. */
static int send_ahead(moe_workers *w, const moe_pass *pass, moe_error *err)
{
    worker_block *block = &w->block;
    bool any = true;
    while (any &&
           block->n_sent - block->n_taken + block->max_pairs / N_WINDOWS <= block->max_pairs) {
        MOE_TRY(send_window(w, pass, &any, err));
    }
    return MOE_OK;
}

/* After a loss: leaves to this engine what workers that are gone have not delivered. */
static void give_up(const moe_workers *w, moe_panel_block *panel)
{
    for (uint32_t i = panel->n_served; i < panel->plan.n_experts; i++) {
        panel->elsewhere[i] = panel->elsewhere[i] && is_ready(w, w->block.owners[i]);
    }
}

static int share(void *context, moe_runner *runner, const moe_pass *pass, bool begins,
                 moe_error *err)
{
    moe_workers *w = context;
    moe_panel_block *panel = pass->panel->block;
    (void)runner;
    moe_workers_hear(w);
    moe_worker_links_tend(&w->links);
    (void)moe_workers_look(w);
    if (begins) {
        choose(w, panel, pass->panel->layer);
    } else if (w->block.is_broken) {
        give_up(w, panel);
    }
    if (begins || w->block.is_broken) {
        restart(&w->block, panel);
    }
    return send_ahead(w, pass, err);
}

/* ---- Taking ---- */

/* Notes what the block has cost each side, once all that workers compute of it was taken. */
static void note_costs(moe_workers *w)
{
    worker_block *block = &w->block;
    const uint64_t here_ns = moe_now_ns() - block->begin_ns;
    moe_worker_costs_note(&w->choice.here, MOE_WORKER_BLOCK_ROWS, block->n_read + 1,
                          here_ns > block->wait_ns ? here_ns - block->wait_ns : 0);
    for (uint32_t i = 0; i < w->links.n; i++) {
        if (block->n_experts[i] > 0) {
            moe_worker_costs_note(&w->links.list[i].costs, MOE_WORKER_BLOCK_ROWS,
                                  block->n_experts[i], block->busy_ns[i]);
        }
    }
}

/* Waits until the next pair's output has come, or is lost. */
static int await(moe_workers *w, const moe_pass *pass, moe_error *err)
{
    worker_block *block = &w->block;
    const uint8_t *state = &block->states[block->n_taken % block->max_pairs];
    const uint64_t begin = moe_now_ns();
    int status = MOE_OK;
    MOE_ASSERT(block->n_sent != block->n_taken);
    if (*state == PAIR_WAITS) {
        moe_workers_hear(w); /* what came while this engine computed is not overdue */
    }
    while (*state == PAIR_WAITS && status == MOE_OK) {
        (void)moe_workers_look(w);
        status = *state == PAIR_WAITS ? moe_workers_listen(w, pass, err) : MOE_OK;
    }
    block->wait_ns += moe_now_ns() - begin;
    w->stats.wait_ns += moe_now_ns() - begin;
    return status;
}

/* Takes n pairs in their order. */
static int take_pairs(moe_workers *w, const moe_pass *pass, uint32_t n, bool *lost, moe_error *err)
{
    worker_block *block = &w->block;
    const size_t n_in = w->runner->config->n_expert_in;
    for (uint32_t k = 0; k < n && !*lost; k++) {
        MOE_TRY(send_ahead(w, pass, err));
        MOE_TRY(await(w, pass, err));
        const size_t place = block->n_taken % block->max_pairs;
        *lost = block->states[place] == PAIR_IS_LOST;
        memcpy(pass->panel->block->tile_out + k * n_in, block->outs + place * n_in,
               n_in * sizeof(float));
        block->n_taken++;
    }
    return MOE_OK;
}

static int take(void *context, moe_runner *runner, const moe_pass *pass, uint32_t begin, uint32_t n,
                bool *lost, moe_error *err)
{
    moe_workers *w = context;
    const moe_panel_block *panel = pass->panel->block;
    (void)runner;
    *lost = false;
    int status = take_pairs(w, pass, n, lost, err);
    w->block.is_broken = *lost || status != MOE_OK;
    if (begin + n == panel->plan.first[panel->n_served + 1] && !w->block.is_broken &&
        --w->block.n_left == 0) {
        note_costs(w);
    }
    return status;
}

const moe_block_stages moe_worker_block_stages = {.share = share, .take = take};
