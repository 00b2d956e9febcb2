/* SPDX-License-Identifier: MIT */
#include "server_scheduler.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "server.h"
#include "server_sessions.h"

enum { TOKENS_AT_ONCE = 256 };

struct server_scheduler {
    moe_engine *engine;
    uint32_t parallel;
    size_t most_waiting;
    pthread_t thread;

    /* Of the engine's thread. */
    server_job *active[SERVER_MOST_PARALLEL];
    uint32_t n_active;
    server_sessions sessions;

    pthread_mutex_t lock;
    /* Under the lock. */
    pthread_cond_t work;
    server_job *first;
    server_job *last;
    size_t n_waiting;
    bool ending;
    server_counts counts;
};

/* ---- Jobs ---- */

server_job *server_job_new(void)
{
    pthread_condattr_t attributes;
    server_job *job = calloc(1, sizeof *job);
    if (job == NULL) {
        return NULL;
    }
    moe_sampling_init(&job->sampling);
    job->max_tokens = UINT64_MAX;
    job->references = 1;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&job->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    return job;
}

static void drop_reference(server_scheduler *s, server_job *job)
{
    pthread_mutex_lock(&s->lock);
    bool last = --job->references == 0;
    pthread_mutex_unlock(&s->lock);
    if (!last) {
        return;
    }
    free(job->tokens);
    moe_chat_prompt_close(&job->prompt);
    server_stops_free(&job->stops);
    cli_buffer_free(&job->content);
    cli_buffer_free(&job->reasoning);
    pthread_cond_destroy(&job->changed);
    free(job);
}

/* With the lock held. */
static void cancel(server_job *job)
{
    if (job->state != SERVER_DONE) {
        job->cancelled = true;
        if (job->session != NULL) {
            moe_session_cancel(job->session);
        }
    }
}

void server_job_release(server_scheduler *s, server_job **job)
{
    if (*job != NULL) {
        pthread_mutex_lock(&s->lock);
        cancel(*job);
        pthread_mutex_unlock(&s->lock);
        drop_reference(s, *job);
        *job = NULL;
    }
}

bool server_submit(server_scheduler *s, server_job *job)
{
    pthread_mutex_lock(&s->lock);
    bool taken = s->n_waiting < s->most_waiting && !s->ending;
    if (taken) {
        *(s->last == NULL ? &s->first : &s->last->next) = job;
        s->last = job;
        s->n_waiting++;
        s->counts.submitted++;
        job->references++;
        pthread_cond_signal(&s->work);
    } else {
        s->counts.refused++;
    }
    pthread_mutex_unlock(&s->lock);
    return taken;
}

void server_wait(server_scheduler *s, server_job *job, server_job_state state,
                 unsigned milliseconds, server_news *news)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)milliseconds * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&s->lock);
    int waited = 0;
    while (job->state == state && job->content.size == 0 && job->reasoning.size == 0 &&
           waited != ETIMEDOUT) {
        waited = pthread_cond_timedwait(&job->changed, &s->lock, &until);
    }
    *news = (server_news){.content = job->content,
                          .reasoning = job->reasoning,
                          .state = job->state,
                          .finish = job->finish,
                          .status = job->status,
                          .message = job->message,
                          .n_written = job->n_written,
                          .n_cached = job->n_cached};
    job->content = (cli_buffer){NULL, 0, 0};
    job->reasoning = (cli_buffer){NULL, 0, 0};
    pthread_mutex_unlock(&s->lock);
}

void server_news_free(server_news *news)
{
    cli_buffer_free(&news->content);
    cli_buffer_free(&news->reasoning);
}

/* ---- Of the engine's thread: the end of a job ---- */

/* Makes the job DONE. Its session stays idle where `keep` says so. */
static void finish_job(server_scheduler *s, server_job *job, server_finish finish, int status,
                       const moe_error *message, bool keep)
{
    pthread_mutex_lock(&s->lock);
    moe_session *session = job->session;
    job->session = NULL;
    job->state = SERVER_DONE;
    job->finish = finish;
    job->status = status;
    if (message != NULL) {
        job->message = *message;
    }
    s->counts.cancelled += job->cancelled;
    s->counts.failed += !job->cancelled && job->finish == SERVER_FINISH_FAILED;
    s->counts.finished += !job->cancelled && job->finish != SERVER_FINISH_FAILED;
    pthread_cond_broadcast(&job->changed);
    pthread_mutex_unlock(&s->lock);
    moe_text_close(&job->text);
    moe_chat_reply_close(&job->reply);
    if (session != NULL && keep) {
        server_sessions_keep(&s->sessions, session);
    } else {
        moe_session_close(&session);
    }
    drop_reference(s, job);
}

/* ---- The beginning of a job ---- */

static int begin_job(server_scheduler *s, server_job *job, moe_error *err)
{
    moe_session *session = NULL;
    moe_session *active[SERVER_MOST_PARALLEL];
    size_t kept = 0;
    for (uint32_t i = 0; i < s->n_active; i++) {
        active[i] = s->active[i]->session;
    }
    const server_wanted wanted = {job->tokens, job->n_tokens, &job->sampling};
    int status = server_sessions_get(&s->sessions, s->engine, s->parallel, active, s->n_active,
                                     &wanted, &session, err);
    size_t evaluated =
        session == NULL ? 0 : moe_session_n_tokens(session) - moe_session_n_pending(session);
    if (status == MOE_OK) {
        status = moe_session_follow(session, job->tokens, job->n_tokens, &kept, err);
    }
    if (status == MOE_OK) {
        status = job->prompt != NULL
                     ? moe_chat_reply_create(&job->reply, s->engine, job->prompt, err)
                     : moe_text_create(&job->text, s->engine, err);
    }
    if (status != MOE_OK) {
        moe_session_close(&session);
        return status;
    }
    s->active[s->n_active++] = job;
    pthread_mutex_lock(&s->lock);
    job->session = session;
    job->state = SERVER_RUNNING;
    job->n_cached = kept < evaluated ? kept : evaluated;
    s->counts.prompt_tokens += job->n_tokens;
    s->counts.cached_tokens += job->n_cached;
    pthread_cond_broadcast(&job->changed);
    pthread_mutex_unlock(&s->lock);
    return MOE_OK;
}

/* Takes the first waiting job off the queue; NULL: none. *left: its client has gone. */
static server_job *next_waiting(server_scheduler *s, bool *left)
{
    pthread_mutex_lock(&s->lock);
    server_job *job = s->first;
    if (job != NULL) {
        s->first = job->next;
        s->last = s->first == NULL ? NULL : s->last;
        job->next = NULL;
        s->n_waiting--;
        *left = job->cancelled;
    }
    pthread_mutex_unlock(&s->lock);
    return job;
}

static void put_back(server_scheduler *s, server_job *job)
{
    pthread_mutex_lock(&s->lock);
    job->next = s->first;
    s->first = job;
    s->last = s->last == NULL ? job : s->last;
    s->n_waiting++;
    pthread_mutex_unlock(&s->lock);
}

/* Begins waiting jobs while sessions and memory are there. A job that memory is short for waits for
 * the active ones; it fails if there are none. */
static void admit(server_scheduler *s)
{
    while (s->n_active < s->parallel) {
        bool left = false;
        moe_error err = {""};
        server_job *job = next_waiting(s, &left);
        if (job == NULL) {
            return;
        }
        if (left) {
            finish_job(s, job, SERVER_FINISH_FAILED, MOE_ERR_CANCELLED, NULL, false);
            continue;
        }
        int status = begin_job(s, job, &err);
        while (status == MOE_ERR_BUDGET && server_sessions_close_oldest(&s->sessions, NULL)) {
            status = begin_job(s, job, &err);
        }
        if (status == MOE_ERR_BUDGET && s->n_active > 0) {
            put_back(s, job);
            return;
        }
        if (status != MOE_OK) {
            finish_job(s, job, SERVER_FINISH_FAILED, status, &err, false);
        }
    }
}

/* ---- Steps ---- */

/* Hands new text to the connection's thread. */
static bool publish(server_scheduler *s, server_job *job, const cli_buffer *content,
                    const char *reasoning, uint64_t n_tokens)
{
    size_t n_reasoning = strlen(reasoning);
    pthread_mutex_lock(&s->lock);
    bool stored =
        (content->size == 0 || cli_buffer_append(&job->content, content->data, content->size)) &&
        (n_reasoning == 0 || cli_buffer_append(&job->reasoning, reasoning, n_reasoning));
    job->n_written += n_tokens;
    s->counts.written_tokens += n_tokens;
    pthread_cond_broadcast(&job->changed);
    pthread_mutex_unlock(&s->lock);
    return stored;
}

/* The text of one token, or with MOE_TOKEN_NONE what was held back at the end. */
static server_stops_result write_text(server_scheduler *s, server_job *job, int32_t token)
{
    const char *reasoning = "";
    const char *text;
    size_t size;
    cli_buffer content = {NULL, 0, 0};
    bool ends = token == MOE_TOKEN_NONE;
    if (job->reply != NULL) {
        (ends ? (void)moe_chat_reply_finish(job->reply, &reasoning, &text)
              : (void)moe_chat_reply_push(job->reply, token, &reasoning, &text));
        size = strlen(text);
    } else {
        text = ends ? moe_text_finish(job->text, &size) : moe_text_push(job->text, token, &size);
    }
    server_stops_result result = SERVER_STOPS_GO_ON;
    if (size > 0) {
        result = server_stops_push(&job->stops, text, size, &content);
    }
    if (!publish(s, job, &content, reasoning, ends ? 0 : 1)) {
        result = SERVER_STOPS_NO_MEMORY;
    }
    cli_buffer_free(&content);
    return result;
}

/* Writes what was held back, and finishes the job. */
static void end_text(server_scheduler *s, server_job *job, server_finish finish)
{
    static const moe_error no_memory = {"out of memory for the answer's text"};
    server_stops_result result = write_text(s, job, MOE_TOKEN_NONE);
    cli_buffer rest = {NULL, 0, 0};
    bool stored = result != SERVER_STOPS_NO_MEMORY && server_stops_finish(&job->stops, &rest) &&
                  publish(s, job, &rest, "", 0);
    cli_buffer_free(&rest);
    if (!stored) {
        finish_job(s, job, SERVER_FINISH_FAILED, MOE_ERR_MEMORY, &no_memory, false);
    } else {
        finish_job(s, job, result == SERVER_STOPS_FOUND ? SERVER_FINISH_STOP : finish, MOE_OK, NULL,
                   true);
    }
}

/* Takes what the step sampled. True when the job is finished. */
static bool take_tokens(server_scheduler *s, server_job *job)
{
    static const moe_error no_memory = {"out of memory for the answer's text"};
    int32_t tokens[TOKENS_AT_ONCE];
    size_t n;
    size_t n_all = 0;
    while ((n = moe_session_take(job->session, tokens, TOKENS_AT_ONCE)) > 0) {
        n_all += n;
        for (size_t i = 0; i < n; i++) {
            if (!job->ignore_eos && moe_token_is_end(s->engine, tokens[i])) {
                end_text(s, job, SERVER_FINISH_STOP);
                return true;
            }
            server_stops_result result = write_text(s, job, tokens[i]);
            if (result == SERVER_STOPS_FOUND) {
                finish_job(s, job, SERVER_FINISH_STOP, MOE_OK, NULL, true);
                return true;
            }
            if (result == SERVER_STOPS_NO_MEMORY) {
                finish_job(s, job, SERVER_FINISH_FAILED, MOE_ERR_MEMORY, &no_memory, false);
                return true;
            }
            if (job->n_written >= job->max_tokens) {
                end_text(s, job, SERVER_FINISH_LENGTH);
                return true;
            }
        }
    }
    if (n_all > 0 && moe_session_is_full(job->session)) {
        end_text(s, job, SERVER_FINISH_LENGTH);
        return true;
    }
    return false;
}

static void drop_active(server_scheduler *s, uint32_t i)
{
    memmove(&s->active[i], &s->active[i + 1], (s->n_active - i - 1) * sizeof s->active[0]);
    s->n_active--;
}

static bool is_cancelled(server_scheduler *s, const server_job *job)
{
    pthread_mutex_lock(&s->lock);
    bool cancelled = job->cancelled;
    pthread_mutex_unlock(&s->lock);
    return cancelled;
}

static void drop_cancelled(server_scheduler *s)
{
    for (uint32_t i = s->n_active; i-- > 0;) {
        server_job *job = s->active[i];
        if (is_cancelled(s, job)) {
            drop_active(s, i);
            finish_job(s, job, SERVER_FINISH_FAILED, MOE_ERR_CANCELLED, NULL, false);
        }
    }
}

/* A step failed. Where memory is short, idle sessions go first, then the job that came last. Other
 * failures (a disk, damaged weights) concern all. */
static void after_failure(server_scheduler *s, int status, const moe_error *err)
{
    bool memory = status == MOE_ERR_BUDGET || status == MOE_ERR_MEMORY;
    if (memory && server_sessions_close_oldest(&s->sessions, NULL)) {
        return;
    }
    uint32_t n = memory && s->n_active > 0 ? 1 : s->n_active;
    for (uint32_t i = 0; i < n; i++) {
        server_job *job = s->active[--s->n_active];
        finish_job(s, job, SERVER_FINISH_FAILED, status, err, false);
    }
}

static void step(server_scheduler *s)
{
    moe_session *sessions[SERVER_MOST_PARALLEL];
    moe_error err = {""};
    for (uint32_t i = 0; i < s->n_active; i++) {
        sessions[i] = s->active[i]->session;
    }
    int status = moe_step(s->engine, sessions, s->n_active, &err);
    if (status != MOE_OK && status != MOE_ERR_CANCELLED) {
        after_failure(s, status, &err);
        return;
    }
    for (uint32_t i = 0; i < s->n_active;) {
        server_job *job = s->active[i];
        if (status == MOE_OK && take_tokens(s, job)) {
            drop_active(s, i);
        } else {
            i++;
        }
    }
}

static void count(server_scheduler *s, bool stepped)
{
    moe_engine_stats stats = {.struct_size = sizeof stats};
    moe_engine_get_stats(s->engine, &stats);
    pthread_mutex_lock(&s->lock);
    s->counts.engine = stats;
    s->counts.steps += stepped;
    s->counts.active = s->n_active;
    s->counts.idle = s->sessions.n_idle;
    pthread_mutex_unlock(&s->lock);
}

static void *engine_thread(void *user)
{
    server_scheduler *s = user;
    for (;;) {
        pthread_mutex_lock(&s->lock);
        while (s->n_active == 0 && s->first == NULL && !s->ending) {
            pthread_cond_wait(&s->work, &s->lock);
        }
        bool ends = s->n_active == 0 && s->first == NULL;
        pthread_mutex_unlock(&s->lock);
        if (ends) {
            break;
        }
        drop_cancelled(s);
        admit(s);
        bool steps = s->n_active > 0;
        if (steps) {
            step(s);
        }
        count(s, steps);
    }
    while (server_sessions_close_oldest(&s->sessions, NULL)) {
    }
    return NULL;
}

/* ---- From outside ---- */

server_scheduler *server_scheduler_start(moe_engine *engine, uint32_t parallel, size_t most_waiting)
{
    server_scheduler *s = calloc(1, sizeof *s);
    if (s == NULL) {
        return NULL;
    }
    s->engine = engine;
    s->parallel = parallel;
    s->most_waiting = most_waiting;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->work, NULL);
    count(s, false);
    if (pthread_create(&s->thread, NULL, engine_thread, s) != 0) {
        pthread_cond_destroy(&s->work);
        pthread_mutex_destroy(&s->lock);
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
    pthread_mutex_lock(&s->lock);
    s->ending = true;
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    pthread_cond_destroy(&s->work);
    pthread_mutex_destroy(&s->lock);
    free(s);
    *scheduler = NULL;
}

void server_get_counts(server_scheduler *s, server_counts *counts)
{
    pthread_mutex_lock(&s->lock);
    *counts = s->counts;
    counts->waiting = (uint32_t)s->n_waiting;
    pthread_mutex_unlock(&s->lock);
}
