/* SPDX-License-Identifier: MIT */
#include "runtime/workers/worker_jobs.h"

#include <string.h>

#include "runtime/base/clock.h"
#include "runtime/base/error.h"

/* While a pass waits for workers, it checks at this interval whether the step was cancelled. */
#define LOOK_NS UINT64_C(50000000)
/* About the size of a result. */
#define MOST_RESULT_BYTES ((size_t)8 << 20)

/* ---- Sending ---- */

uint32_t moe_workers_most_outs(const moe_workers *w)
{
    const size_t n = MOST_RESULT_BYTES / (w->runner->config->n_expert_in * sizeof(float));
    return n > 0 ? (uint32_t)n : 1;
}

moe_rows_form moe_workers_form(const moe_tensor_map *map, uint32_t layer, uint32_t n_in)
{
    const moe_expert_ref *expert = &map->layers[layer].experts[0];
    const bool quantized = !moe_dtype_info_of(expert->parts[MOE_EXPERT_UP].type)->is_float &&
                           !moe_dtype_info_of(expert->parts[MOE_EXPERT_GATE].type)->is_float;
    return quantized && moe_rows_can_be(MOE_ROWS_8_BITS, n_in) ? MOE_ROWS_8_BITS : MOE_ROWS_FLOAT;
}

int moe_workers_new_job(moe_workers *w, uint32_t layer, uint32_t n_rows, worker_job_parts *parts,
                        moe_error *err)
{
    const moe_model_config *c = w->runner->config;
    const moe_job_head head = {
        .layer = layer, .n_rows = n_rows, .form = moe_workers_form(w->map, layer, c->n_expert_in)};
    uint8_t *payload;
    *parts = (worker_job_parts){.form = head.form, .n_rows = n_rows};
    parts->message = moe_message_new(MOE_MESSAGE_JOB, ++w->last_id,
                                     moe_job_bytes(&w->links.identity, head.form, n_rows), &payload,
                                     &parts->n_bytes);
    if (parts->message == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for a worker's job of %u rows", n_rows);
    }
    memcpy(payload, &head, sizeof head);
    parts->x = payload + sizeof head;
    parts->chosen = parts->x + moe_rows_bytes(head.form, n_rows, c->n_expert_in);
    parts->weights = parts->chosen + (size_t)n_rows * c->n_expert_used * sizeof(uint32_t);
    return MOE_OK;
}

void moe_workers_send(moe_workers *w, worker_job *job, const worker_job_parts *parts)
{
    moe_message_seal(parts->message, parts->n_bytes);
    job->id = w->last_id;
    job->sent_ns = moe_now_ns();
    w->links.wire->ops->send(w->links.wire, job->link->peer, parts->message, parts->n_bytes);
    job->link->n_jobs++;
    w->stats.n_jobs++;
    w->stats.n_rows += job->n_outs;
    w->stats.bytes_sent += parts->n_bytes;
}

/* ---- Results ---- */

static worker_job *find_job(worker_job *jobs, uint32_t n, const moe_worker_answer *answer)
{
    for (uint32_t i = 0; i < n; i++) {
        if (jobs[i].link == answer->from && jobs[i].id == answer->message.id) {
            return &jobs[i];
        }
    }
    return NULL;
}

/* Whether another job of the layer is under way at the job's worker. */
static bool has_other(const moe_workers *w, const worker_job *job)
{
    bool has = false;
    for (uint32_t i = 0; i < w->n_jobs && !has; i++) {
        has = w->jobs[i].link == job->link && &w->jobs[i] != job;
    }
    return has;
}

static void accept_outs(moe_workers *w, worker_job *job, const uint8_t *outs, uint64_t time_ns)
{
    const size_t n_in = w->runner->config->n_expert_in;
    memcpy(w->outs + job->first * n_in, outs, job->n_outs * n_in * sizeof(float));
    memset(w->is_there + job->first, true, job->n_outs * sizeof *w->is_there);
    if (!has_other(w, job)) { /* the time of all of them */
        moe_worker_costs_note(&job->link->costs, w->n_pass_rows, job->n_experts,
                              time_ns - job->sent_ns);
    }
    job->link = NULL;
}

void moe_workers_accept_pairs(moe_workers *w, const worker_job *job, const uint8_t *outs,
                              uint64_t time_ns)
{
    worker_block *block = &w->block;
    const size_t n_in = w->runner->config->n_expert_in;
    const size_t i = (size_t)(job->link - w->links.list);
    for (uint32_t k = 0; k < job->n_outs; k++) {
        const uint32_t place = block->sent[(job->first + k) % block->max_pairs] % block->max_pairs;
        block->states[place] = outs != NULL ? PAIR_IS_THERE : PAIR_IS_LOST;
        if (outs != NULL) {
            memcpy(block->outs + place * n_in, outs + k * n_in * sizeof(float),
                   n_in * sizeof(float));
        }
    }
    if (outs == NULL) {
        return;
    }
    /* Jobs wait for earlier ones, so a job's own time begins when the one before was done. */
    const uint64_t begin = job->sent_ns > block->last_ns[i] ? job->sent_ns : block->last_ns[i];
    block->busy_ns[i] += time_ns > begin ? time_ns - begin : 0;
    block->last_ns[i] = time_ns;
}

static void end_block_job(worker_block *block, worker_job *job)
{
    *job = block->jobs[--block->n_jobs];
}

static void take_answer(moe_workers *w, const moe_worker_answer *answer)
{
    const moe_message *message = &answer->message;
    worker_block *block = &w->block;
    worker_job *of_layer = find_job(w->jobs, w->n_jobs, answer);
    worker_job *of_block = find_job(block->jobs, block->n_jobs, answer);
    worker_job *job = of_layer != NULL ? of_layer : of_block;
    moe_result_head head;
    char text[128];
    if (job == NULL) {
        return; /* the answer belongs to a cancelled step */
    }
    bool fits = message->kind == MOE_MESSAGE_RESULT &&
                message->n_bytes == moe_result_bytes(&w->links.identity, job->n_outs);
    if (fits) {
        memcpy(&head, message->payload, sizeof head);
        fits = head.n_outs == job->n_outs;
    }
    if (!fits) {
        moe_message_text(message, text, sizeof text);
        moe_worker_leave_out(&w->links, answer->from,
                             message->kind == MOE_MESSAGE_FAILED ? text : "its results do not fit");
        return;
    }
    job->link->heard_ns = answer->time_ns;
    w->stats.bytes_received += message->n_bytes;
    if (of_layer != NULL) {
        accept_outs(w, job, message->payload + sizeof head, answer->time_ns);
    } else {
        moe_workers_accept_pairs(w, job, message->payload + sizeof head, answer->time_ns);
        end_block_job(block, job);
    }
}

void moe_workers_hear(moe_workers *w)
{
    moe_worker_answer answer;
    moe_worker_news news;
    while ((news = moe_worker_links_next(&w->links, 0, &answer)) != MOE_WORKERS_QUIET) {
        if (news == MOE_WORKERS_ANSWER) {
            take_answer(w, &answer);
            moe_worker_answer_free(&answer);
        }
    }
}

/* ---- Losses ---- */

/* Whether the job's worker is gone, or is left out now because it took too long. */
static bool is_lost(moe_workers *w, const worker_job *job, uint64_t now)
{
    moe_worker_link *link = job->link;
    const uint64_t since = link->heard_ns > job->sent_ns ? link->heard_ns : job->sent_ns;
    if (link->state == MOE_WORKER_READY && now > since + w->links.timeout_ns) {
        moe_worker_leave_out(&w->links, link, "it does not answer");
    }
    /* A worker that came back has not got the jobs of before. */
    return link->state != MOE_WORKER_READY || link->since_ns > job->sent_ns;
}

bool moe_workers_look(moe_workers *w)
{
    const uint64_t now = moe_now_ns();
    worker_block *block = &w->block;
    bool any = false;
    for (uint32_t i = 0; i < w->n_jobs; i++) {
        worker_job *job = &w->jobs[i];
        if (job->link != NULL && is_lost(w, job, now)) {
            w->stats.n_lost_experts += job->n_experts;
            job->link = NULL;
        }
        any = any || job->link != NULL;
    }
    for (uint32_t i = 0; i < block->n_jobs;) {
        if (is_lost(w, &block->jobs[i], now)) {
            w->stats.n_lost_experts += block->jobs[i].n_experts;
            moe_workers_accept_pairs(w, &block->jobs[i], NULL, now);
            end_block_job(block, &block->jobs[i]);
        } else {
            i++;
        }
    }
    return any;
}

int moe_workers_listen(moe_workers *w, const moe_pass *pass, moe_error *err)
{
    moe_worker_answer answer;
    if (pass->is_cancelled != NULL && pass->is_cancelled(pass->cancel_user)) {
        return moe_fail(err, MOE_ERR_CANCELLED, "the step was cancelled");
    }
    if (moe_worker_links_next(&w->links, LOOK_NS, &answer) == MOE_WORKERS_ANSWER) {
        take_answer(w, &answer);
        moe_worker_answer_free(&answer);
    }
    return MOE_OK;
}
