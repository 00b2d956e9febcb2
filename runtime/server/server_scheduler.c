/* SPDX-License-Identifier: MIT */
#include "server_scheduler.h"

#include <stdlib.h>
#include <string.h>

#include <moe/grammar.h>
#include <moe/sampling.h>

#include "server.h"
#include "server_embedding.h"
#include "server_sessions.h"
#include "server_writing.h"

struct server_scheduler {
    moe_engine *engine;
    uint32_t parallel;
    server_queue *queue;
    server_view *view;
    pthread_t thread;

    /* Only the engine's thread uses these members. */
    server_job *active[SERVER_MOST_PARALLEL]; /* in the order in which they began */
    uint32_t n_active;
    uint32_t n_running;   /* the first n_running run; the others are paused until one of these
                           * ends */
    bool short_of_memory; /* no job begins until an active one ends */
    uint64_t n_pauses;
    server_sessions sessions;
    server_writer writer;
    /* For each job in the current step: how many of its tokens are evaluated, and how many are
     * left. */
    struct {
        size_t read, left;
    } reading[SERVER_MOST_PARALLEL];
};

/* ---- Starting a job ---- */

/* Applies the job's settings to the session, replacing those of the session's earlier job. */
static int apply_settings(moe_session *session, const server_job *job, moe_error *err)
{
    int status = moe_session_set_biases(session, job->biases, job->n_biases, err);
    status = status == MOE_OK ? moe_session_set_reports(session, job->n_top, err) : status;
    return status == MOE_OK ? moe_session_set_grammar(session, job->grammar, err) : status;
}

static int begin_answer(server_scheduler *s, server_job *job, moe_session *session, size_t *kept,
                        moe_error *err)
{
    int status = moe_session_follow(session, job->tokens, job->n_tokens, kept, err);
    status = status == MOE_OK ? apply_settings(session, job, err) : status;
    return status == MOE_OK && job->tells_prompt
               ? server_watch_prompt(&s->writer, job, session, err)
               : status;
}

static int begin_job(server_scheduler *s, server_job *job, moe_error *err)
{
    moe_session *session = NULL;
    moe_session *active[SERVER_MOST_PARALLEL];
    size_t kept = 0;
    for (uint32_t i = 0; i < s->n_active; i++) {
        active[i] = s->active[i]->session;
    }
    const bool embeds = job->text_ends != NULL;
    const server_wanted wanted = {job->tokens, job->n_tokens, &job->sampling,
                                  embeds || job->tells_prompt, embeds};
    int status = server_sessions_get(&s->sessions, s->engine, s->parallel, active, s->n_active,
                                     &wanted, &session, err);
    size_t evaluated =
        session == NULL ? 0 : moe_session_n_tokens(session) - moe_session_n_pending(session);
    if (status == MOE_OK) {
        status = embeds ? server_embedding_begin(&s->writer, job, session, err)
                        : begin_answer(s, job, session, &kept, err);
    }
    if (status == MOE_OK && !embeds) {
        status = job->prompt != NULL
                     ? moe_chat_reply_create(&job->reply, s->engine, job->prompt, err)
                     : moe_text_create(&job->text, s->engine, err);
    }
    if (status != MOE_OK) {
        moe_session_close(&session);
        return status;
    }
    if (job->keeps_markup) {
        moe_chat_reply_keep_markup(job->reply);
    }
    s->active[s->n_active++] = job;
    s->n_running = s->n_active;
    job->n_repeated = 0;
    job->repeated = 0;
    server_queue_began(s->queue, job, session, kept < evaluated ? kept : evaluated);
    return MOE_OK;
}

static bool is_short(int status)
{
    return status == MOE_ERR_BUDGET || status == MOE_ERR_MEMORY;
}

/* Starts waiting jobs as long as there are sessions and memory. If memory is short for a job, it
 * waits until an active job ends; if no job is active, it fails. */
static void admit(server_scheduler *s)
{
    while (s->n_active < s->parallel && !s->short_of_memory) {
        bool left = false;
        moe_error err = {""};
        server_job *job = server_queue_next(s->queue, &left);
        if (job == NULL) {
            return;
        }
        if (left) {
            server_finish_job(&s->writer, job, SERVER_FINISH_FAILED, MOE_ERR_CANCELLED, NULL,
                              false);
            continue;
        }
        int status = begin_job(s, job, &err);
        while (is_short(status) && server_sessions_close_oldest(&s->sessions, NULL)) {
            status = begin_job(s, job, &err);
        }
        if (is_short(status) && s->n_active > 0) {
            (void)server_queue_put_back(s->queue, job);
            return;
        }
        if (status != MOE_OK) {
            server_finish_job(&s->writer, job, SERVER_FINISH_FAILED, status, &err, false);
        }
    }
}

/* ---- Steps ---- */

/* Removes a job from the active ones. The memory that it had is free for paused and new jobs. */
static void drop_active(server_scheduler *s, uint32_t i)
{
    memmove(&s->active[i], &s->active[i + 1], (s->n_active - i - 1) * sizeof s->active[0]);
    s->n_running = --s->n_active;
    s->short_of_memory = false;
}

static void drop_cancelled(server_scheduler *s)
{
    for (uint32_t i = s->n_active; i-- > 0;) {
        server_job *job = s->active[i];
        if (server_queue_is_cancelled(s->queue, job)) {
            drop_active(s, i);
            server_finish_job(&s->writer, job, SERVER_FINISH_FAILED, MOE_ERR_CANCELLED, NULL,
                              false);
        }
    }
}

/* Closes the session of the active job that came last. The job starts again when another job has
 * ended. */
static void set_back(server_scheduler *s)
{
    server_job *job = s->active[s->n_active - 1];
    drop_active(s, s->n_active - 1);
    s->short_of_memory = true;
    moe_text_close(&job->text);
    moe_chat_reply_close(&job->reply);
    server_stops_restart(&job->stops);
    moe_session *session = server_queue_put_back(s->queue, job);
    moe_session_close(&session);
}

/* Handles a failed step. If memory is short, it first closes idle sessions. Then it pauses jobs,
 * beginning with the one that came last, until the others can continue. If even the first job
 * cannot continue beside the sessions of paused jobs, paused jobs are set back: they lose their
 * sessions. So the job that came first always continues; it fails only if it does not fit alone.
 * All other failures (a disk error, damaged weights) fail all jobs. */
static void after_failure(server_scheduler *s, int status, const moe_error *err)
{
    bool memory = is_short(status);
    if (memory && server_sessions_close_oldest(&s->sessions, NULL)) {
        return;
    }
    if (memory && s->n_running > 1) {
        s->n_running--;
        s->n_pauses++;
        s->short_of_memory = true;
        return;
    }
    if (memory && s->n_active > 1) {
        set_back(s);
        s->n_running = 1;
        return;
    }
    while (s->n_active > 0) {
        server_job *job = s->active[s->n_active - 1];
        drop_active(s, s->n_active - 1);
        server_finish_job(&s->writer, job, SERVER_FINISH_FAILED, status, err, false);
    }
}

/* Records how far the jobs' sessions have been evaluated, and reports the progress of prompts. */
static void note_reading(server_scheduler *s, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        server_job *job = s->active[i];
        s->reading[i].left = moe_session_n_pending(job->session);
        s->reading[i].read = moe_session_n_tokens(job->session) - s->reading[i].left;
        if (job->n_read < job->n_tokens) {
            size_t read = s->reading[i].read;
            server_queue_read(s->queue, job, read < job->n_tokens ? read : job->n_tokens);
        }
    }
}

/* The library calls this during a step with the progress of the current pass; the engine must not
 * be called here. A pass holds rows of all jobs, so its progress is divided among the jobs in
 * proportion to the tokens that they have left. */
static void on_pass(const moe_pass_progress *pass, void *user)
{
    server_scheduler *s = user;
    double left = 0;
    for (uint32_t i = 0; i < s->n_running; i++) {
        left += (double)s->reading[i].left;
    }
    for (uint32_t i = 0; i < s->n_running && left > 0; i++) {
        server_job *job = s->active[i];
        double n = (double)s->reading[i].left * (pass->rows_done / left);
        n = n < (double)s->reading[i].left ? n : (double)s->reading[i].left;
        if (job->n_read < job->n_tokens) {
            size_t read = s->reading[i].read + (size_t)n;
            server_queue_read(s->queue, job, read < job->n_tokens ? read : job->n_tokens);
        }
    }
    pthread_mutex_lock(&s->queue->lock);
    s->queue->counts.pass = *pass;
    pthread_mutex_unlock(&s->queue->lock);
    server_view_take_slots(s->view, s->active, s->n_active);
}

static void step(server_scheduler *s)
{
    moe_session *sessions[SERVER_MOST_PARALLEL] = {NULL};
    moe_error err = {""};
    const uint32_t n = s->n_running;
    for (uint32_t i = 0; i < n; i++) {
        sessions[i] = s->active[i]->session;
    }
    note_reading(s, n);
    int status = moe_step(s->engine, sessions, n, &err);
    if (status != MOE_OK && status != MOE_ERR_CANCELLED) {
        after_failure(s, status, &err);
        return;
    }
    note_reading(s, n);
    for (uint32_t i = n; i-- > 0 && status == MOE_OK;) {
        server_job *job = s->active[i];
        if (job->text_ends != NULL ? server_take_embedding(&s->writer, job)
                                   : server_take_tokens(&s->writer, job)) {
            drop_active(s, i);
        }
    }
}

static void count(server_scheduler *s, bool stepped)
{
    moe_engine_stats stats = {.struct_size = sizeof stats};
    moe_engine_get_stats(s->engine, &stats);
    pthread_mutex_lock(&s->queue->lock);
    server_counts *counts = &s->queue->counts;
    counts->engine = stats;
    for (uint32_t i = 0; i < stats.workers && i < SERVER_MOST_WORKERS; i++) {
        counts->workers[i].struct_size = sizeof counts->workers[i];
        (void)moe_engine_get_worker(s->engine, i, &counts->workers[i], NULL);
    }
    counts->pass = (moe_pass_progress){.layer = 0};
    counts->steps += stepped;
    counts->active = s->n_active;
    counts->paused = s->n_pauses;
    counts->idle = s->sessions.n_idle;
    pthread_mutex_unlock(&s->queue->lock);
    server_view_take(s->view, s->active, s->n_active);
}

static void *engine_thread(void *user)
{
    server_scheduler *s = user;
    while (server_queue_await(s->queue,
                              s->n_active > 0 || server_sessions_has_unsaved(&s->sessions))) {
        drop_cancelled(s);
        const uint32_t n_before = s->n_active;
        admit(s);
        bool steps = s->n_active > 0;
        if (s->n_active > n_before) {
            count(s, false); /* before the step, because a first pass may take a minute */
        }
        if (steps) {
            step(s);
        } else {
            (void)server_sessions_save_one(&s->sessions); /* while nobody waits */
            (void)moe_step(s->engine, NULL, 0, NULL); /* lets slots follow the machine's memory */
        }
        count(s, steps);
    }
    while (server_sessions_close_oldest(&s->sessions, NULL)) {
    }
    return NULL;
}

/* ---- Called by other threads ---- */

server_scheduler *server_scheduler_start(moe_engine *engine, uint32_t parallel, server_queue *queue,
                                         server_disk *disk, server_view *view)
{
    server_scheduler *s = calloc(1, sizeof *s);
    if (s == NULL) {
        return NULL;
    }
    s->engine = engine;
    s->parallel = parallel;
    s->queue = queue;
    s->sessions.disk = disk;
    s->view = view;
    s->writer = (server_writer){engine, queue, &s->sessions};
    count(s, false);
    (void)moe_engine_set_pass_progress(engine, on_pass, s, NULL);
    if (pthread_create(&s->thread, NULL, engine_thread, s) != 0) {
        (void)moe_engine_set_pass_progress(engine, NULL, NULL, NULL);
        free(s);
        return NULL;
    }
    return s;
}

void server_scheduler_close(server_scheduler **scheduler)
{
    server_scheduler *s = *scheduler;
    if (s == NULL) {
        return;
    }
    server_queue_end(s->queue);
    pthread_join(s->thread, NULL);
    (void)moe_engine_set_pass_progress(s->engine, NULL, NULL, NULL);
    free(s);
    *scheduler = NULL;
}
