/* SPDX-License-Identifier: MIT */
#include "server_queue.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "server_clock.h"

#define IDLE_MS 250

/* Returns the time of the monotonic clock that is this many milliseconds away. */
static struct timespec in_ms(unsigned milliseconds)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)milliseconds * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    return until;
}

void server_queue_init(server_queue *q, size_t most_waiting, server_memory_account *memory)
{
    memset(q, 0, sizeof *q);
    q->memory = memory;
    q->most_waiting = most_waiting;
    pthread_mutex_init(&q->lock, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&q->work, &attributes);
    pthread_condattr_destroy(&attributes);
}

void server_queue_free(server_queue *q)
{
    pthread_cond_destroy(&q->work);
    pthread_mutex_destroy(&q->lock);
}

/* ---- Clients; all with the lock held ---- */

/* Returns the client's entry. A new client's clock starts at the lowest clock of all clients that
 * have jobs. If the table is full, a client without jobs is replaced; if all have jobs, the new
 * client shares the first entry. */
static server_client *client_of(server_queue *q, uint64_t name)
{
    server_client *place = q->n_clients < SERVER_MOST_CLIENTS ? &q->clients[q->n_clients] : NULL;
    uint64_t lowest = UINT64_MAX;
    for (uint32_t i = 0; i < q->n_clients; i++) {
        server_client *client = &q->clients[i];
        if (client->name == name && client->n_jobs > 0) {
            return client;
        }
        if (client->n_jobs > 0 && client->clock < lowest) {
            lowest = client->clock;
        }
    }
    for (uint32_t i = 0; i < q->n_clients; i++) {
        server_client *client = &q->clients[i];
        if (client->name == name) {
            /* The client was idle, and gets no credit for that time: its clock moves up to the
             * lowest clock of the clients that have jobs. */
            client->clock = lowest != UINT64_MAX && client->clock < lowest ? lowest : client->clock;
            return client;
        }
        place = place == NULL && client->n_jobs == 0 ? client : place;
    }
    if (place == NULL) {
        return &q->clients[0];
    }
    q->n_clients += place == &q->clients[q->n_clients];
    *place = (server_client){.name = name, .clock = lowest == UINT64_MAX ? 0 : lowest};
    return place;
}

/* ---- Called by the connections' threads ---- */

bool server_submit(server_queue *q, server_job *const *jobs, uint32_t n)
{
    pthread_mutex_lock(&q->lock);
    bool taken = q->n_waiting + n <= q->most_waiting && !q->ending;
    server_job **end = &q->first;
    while (*end != NULL) {
        end = &(*end)->next;
    }
    for (uint32_t i = 0; i < n && taken; i++) {
        jobs[i]->submitted_ns = server_now_ns();
        jobs[i]->references++;
        client_of(q, jobs[i]->client)->n_jobs++;
        *end = jobs[i];
        end = &jobs[i]->next;
        q->n_waiting++;
    }
    *(taken ? &q->counts.submitted : &q->counts.refused) += 1;
    pthread_cond_signal(&q->work);
    pthread_mutex_unlock(&q->lock);
    return taken;
}

static bool has_news(const server_job *job, server_job_state state)
{
    return job->state != state || job->content.size > 0 || job->reasoning.size > 0 ||
           job->reports.size > 0 || job->has_progress;
}

static void take_news(server_job *job, server_news *news)
{
    *news = (server_news){.content = job->content,
                          .reasoning = job->reasoning,
                          .reports = job->reports,
                          .charged = job->charged,
                          .state = job->state,
                          .finish = job->finish,
                          .stop = job->stops.found,
                          .status = job->status,
                          .message = job->message,
                          .n_written = job->n_written,
                          .n_cached = job->n_cached,
                          .has_progress = job->has_progress,
                          .n_read = job->n_read,
                          .reading_ns = server_now_ns() - job->began_ns};
    job->has_progress = false;
    job->content = job->reasoning = job->reports = (cli_buffer){NULL, 0, 0};
    job->charged = 0;
}

uint32_t server_wait(server_queue *q, server_job *const *jobs, const server_job_state *states,
                     uint32_t n, uint32_t first, unsigned milliseconds, server_news *news)
{
    const struct timespec until = in_ms(milliseconds);
    memset(news, 0, sizeof *news);
    pthread_mutex_lock(&q->lock);
    uint32_t found = n;
    for (int waited = 0; found == n;) {
        for (uint32_t i = 0; i < n && found == n; i++) {
            uint32_t at = (first + i) % n;
            bool wanted = states[at] != SERVER_DONE && has_news(jobs[at], states[at]);
            found = wanted ? at : n;
        }
        if (found < n || waited == ETIMEDOUT) {
            break;
        }
        waited = pthread_cond_timedwait(&server_job_first(jobs[0])->changed, &q->lock, &until);
    }
    if (found < n) {
        take_news(jobs[found], news);
    }
    pthread_mutex_unlock(&q->lock);
    return found;
}

void server_news_free(server_queue *q, server_news *news)
{
    server_memory_release(q->memory, &news->charged, news->charged);
    cli_buffer_free(&news->content);
    cli_buffer_free(&news->reasoning);
    cli_buffer_free(&news->reports);
}

void server_queue_drop(server_queue *q, server_job *job)
{
    while (job != NULL) {
        pthread_mutex_lock(&q->lock);
        bool last = --job->references == 0;
        if (last) {
            server_memory_release(q->memory, &job->charged, job->charged);
        }
        pthread_mutex_unlock(&q->lock);
        job = last ? server_job_free(job) : NULL;
    }
}

static void end_of_job(server_queue *q, const server_job *job)
{
    server_client *client = client_of(q, job->client);
    client->n_jobs -= client->n_jobs > 0;
}

/* Removes a job whose client has left from the list of waiting jobs, so that it takes up no
 * place. Returns false if the job is not on the list. The caller holds the lock. */
static bool leave_list(server_queue *q, server_job *job)
{
    server_job **at = &q->first;
    while (*at != NULL && *at != job) {
        at = &(*at)->next;
    }
    if (*at == NULL) {
        return false;
    }
    *at = job->next;
    q->n_waiting--;
    end_of_job(q, job);
    q->counts.cancelled++;
    job->state = SERVER_DONE;
    return true;
}

void server_job_release(server_queue *q, server_job **job)
{
    bool left = false;
    if (*job == NULL) {
        return;
    }
    pthread_mutex_lock(&q->lock);
    if ((*job)->state != SERVER_DONE) {
        (*job)->cancelled = true;
        if ((*job)->session != NULL) {
            moe_session_cancel((*job)->session);
        }
        left = leave_list(q, *job);
    }
    pthread_mutex_unlock(&q->lock);
    if (left) {
        server_queue_drop(q, *job); /* the queue's reference */
    }
    server_queue_drop(q, *job);
    *job = NULL;
}

void server_queue_end(server_queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->ending = true;
    pthread_cond_signal(&q->work);
    pthread_mutex_unlock(&q->lock);
}

void server_queue_poke(server_queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->poked = true;
    pthread_cond_signal(&q->work);
    pthread_mutex_unlock(&q->lock);
}

void server_get_counts(server_queue *q, server_counts *counts)
{
    pthread_mutex_lock(&q->lock);
    *counts = q->counts;
    counts->waiting = (uint32_t)q->n_waiting;
    pthread_mutex_unlock(&q->lock);
}

/* ---- Called by the engine's thread ---- */

bool server_queue_await(server_queue *q, bool is_active)
{
    pthread_mutex_lock(&q->lock);
    const struct timespec until = in_ms(IDLE_MS);
    int waited = 0;
    while (!is_active && q->first == NULL && !q->ending && !q->poked && waited == 0) {
        waited = pthread_cond_timedwait(&q->work, &q->lock, &until);
    }
    bool goes_on = is_active || q->first != NULL || !q->ending;
    q->poked = false;
    pthread_mutex_unlock(&q->lock);
    return goes_on;
}

/* Whether the job may begin. A follower must wait until its leader's prompt is evaluated, because
 * it continues from the leader's session. */
static bool can_begin(const server_job *job)
{
    return job->cancelled || job->leader == NULL || job->text_ends != NULL ||
           job->leader->state == SERVER_DONE || job->leader->n_written > 0;
}

static uint64_t length_of(const server_job *job)
{
    const uint64_t unknown = 4096; /* the assumed length of an answer without a limit */
    return job->n_tokens + (job->max_tokens < unknown ? job->max_tokens : unknown);
}

static bool goes_before(server_queue *q, const server_job *a, const server_job *b, uint64_t now)
{
    const uint64_t patience = (uint64_t)SERVER_PATIENCE_SECONDS * 1000000000;
    uint64_t clock_a = client_of(q, a->client)->clock;
    uint64_t clock_b = client_of(q, b->client)->clock;
    bool late_a = now - a->submitted_ns > patience;
    bool late_b = now - b->submitted_ns > patience;
    if (clock_a != clock_b) {
        return clock_a < clock_b;
    }
    if (late_a != late_b) {
        return late_a;
    }
    /* The shorter job goes first. Equally long jobs, and two jobs that have both waited too long,
     * keep their order. */
    return !late_a && length_of(a) < length_of(b);
}

server_job *server_queue_next(server_queue *q, bool *left)
{
    pthread_mutex_lock(&q->lock);
    uint64_t now = server_now_ns();
    server_job **best = NULL;
    for (server_job **at = &q->first; *at != NULL; at = &(*at)->next) {
        if ((*at)->cancelled) {
            best = at;
            break;
        }
        if (can_begin(*at) && (best == NULL || goes_before(q, *at, *best, now))) {
            best = at;
        }
    }
    server_job *job = best != NULL ? *best : NULL;
    if (job != NULL) {
        *best = job->next;
        job->next = NULL;
        q->n_waiting--;
        *left = job->cancelled;
    }
    pthread_mutex_unlock(&q->lock);
    return job;
}

moe_session *server_queue_put_back(server_queue *q, server_job *job)
{
    pthread_mutex_lock(&q->lock);
    moe_session *session = job->session;
    job->session = NULL;
    job->next = q->first;
    q->first = job;
    q->n_waiting++;
    q->counts.set_back += session != NULL;
    pthread_mutex_unlock(&q->lock);
    return session;
}

void server_queue_began(server_queue *q, server_job *job, moe_session *session, size_t n_cached)
{
    pthread_mutex_lock(&q->lock);
    job->session = session;
    if (job->state == SERVER_WAITING) { /* it begins for the first time */
        job->n_cached = job->n_read = n_cached;
        job->has_progress = job->tells_progress;
        job->began_ns = server_now_ns();
        client_of(q, job->client)->clock += job->n_tokens - n_cached;
        q->counts.prompt_tokens += job->n_tokens;
        q->counts.cached_tokens += n_cached;
    }
    job->state = SERVER_RUNNING;
    pthread_cond_broadcast(&server_job_first(job)->changed);
    pthread_mutex_unlock(&q->lock);
}

void server_queue_read(server_queue *q, server_job *job, size_t n_read)
{
    pthread_mutex_lock(&q->lock);
    if (n_read > job->n_read) { /* a job that was set back repeats progress that was already
                                 * reported */
        job->n_read = n_read;
        job->has_progress = job->tells_progress;
        pthread_cond_broadcast(&server_job_first(job)->changed);
    }
    pthread_mutex_unlock(&q->lock);
}

moe_session *server_queue_finish(server_queue *q, server_job *job, server_finish finish, int status,
                                 const moe_error *message)
{
    pthread_mutex_lock(&q->lock);
    moe_session *session = job->session;
    end_of_job(q, job);
    job->session = NULL;
    job->state = SERVER_DONE;
    job->finish = finish;
    job->status = status;
    if (message != NULL) {
        job->message = *message;
    }
    q->counts.cancelled += job->cancelled;
    q->counts.failed += !job->cancelled && finish == SERVER_FINISH_FAILED;
    q->counts.finished += !job->cancelled && finish != SERVER_FINISH_FAILED;
    pthread_cond_broadcast(&server_job_first(job)->changed);
    pthread_mutex_unlock(&q->lock);
    return session;
}

void server_queue_charge(server_queue *q, const server_job *job, uint64_t n_tokens)
{
    client_of(q, job->client)->clock += n_tokens;
}

bool server_queue_is_cancelled(server_queue *q, const server_job *job)
{
    pthread_mutex_lock(&q->lock);
    bool cancelled = job->cancelled;
    pthread_mutex_unlock(&q->lock);
    return cancelled;
}
