/* SPDX-License-Identifier: MIT */
/* The queue of jobs. The connections' threads submit jobs and wait for their text; the engine's
 * thread takes jobs and writes the text. The queue's length is bounded.
 *
 * Which job is next: Each client (identified by its key, else its address) has a clock that
 * counts the tokens that its jobs have read and written. The client with the lowest clock is
 * next, so a client with many requests does not delay one with few. A new client's clock starts
 * at the lowest clock of the clients that have jobs. Among the jobs of one client, one that has
 * waited longer than SERVER_PATIENCE_SECONDS is next, else the shortest. */
#ifndef SERVER_QUEUE_H
#define SERVER_QUEUE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include <moe/moe.h>
#include <moe/workers.h>

#include "server.h"
#include "server_job.h"
#include "server_memory.h"

enum {
    SERVER_PATIENCE_SECONDS = 20,
    SERVER_MOST_CLIENTS = 256, /* clients with a clock */
};

typedef struct server_client {
    uint64_t name;
    uint64_t clock;  /* tokens read and written */
    uint64_t n_jobs; /* jobs that wait or run */
} server_client;

typedef struct server_counts {
    uint64_t submitted, refused, finished, failed, cancelled, paused, set_back;
    uint64_t prompt_tokens, cached_tokens, written_tokens, steps;
    uint32_t active, idle, waiting;
    moe_engine_stats engine;                      /* after the last step */
    moe_worker_info workers[SERVER_MOST_WORKERS]; /* [engine.workers], likewise */
    moe_pass_progress pass; /* the current pass; all 0: nothing is known of it yet */
} server_counts;

typedef struct server_queue {
    size_t most_waiting; /* set at the start */
    server_memory_account *memory;
    pthread_mutex_t lock;
    /* Under the lock. */
    pthread_cond_t work;
    server_job *first; /* in order of arrival */
    size_t n_waiting;
    bool ending;
    bool poked; /* the engine's thread makes one round even if no job waits */
    server_counts counts;
    server_client clients[SERVER_MOST_CLIENTS];
    uint32_t n_clients;
} server_queue;

/* What has changed in a job since the connection's thread last asked. */
typedef struct server_news {
    cli_buffer content; /* new text: the caller frees them */
    cli_buffer reasoning;
    cli_buffer reports;
    uint64_t charged; /* bytes charged to the requests' memory for these buffers */
    server_job_state state;
    server_finish finish;
    size_t stop;
    int status;
    moe_error message;
    uint64_t n_written;
    size_t n_cached;
    bool has_progress;
    size_t n_read;
    uint64_t reading_ns; /* so far */
} server_news;

void server_queue_init(server_queue *queue, size_t most_waiting, server_memory_account *memory);
void server_queue_free(server_queue *queue);

/* ---- Called by the connections' threads ---- */

/* Submits all n jobs, or none: returns false if too many jobs are waiting. */
bool server_submit(server_queue *queue, server_job *const *jobs, uint32_t n);
/* Waits until some job has new text or a state other than states[i], or until the time in
 * milliseconds has passed. Jobs whose state in states[] is DONE are ignored. Returns the index of
 * the job whose news were taken, or n if there are none. Looks at jobs[first] first. */
uint32_t server_wait(server_queue *queue, server_job *const *jobs, const server_job_state *states,
                     uint32_t n, uint32_t first, unsigned milliseconds, server_news *news);
void server_news_free(server_queue *queue, server_news *news);
/* Releases the connection's reference. If the job is not DONE, cancels it; its session is then
 * free after the step that is running. */
void server_job_release(server_queue *queue, server_job **job);
/* Shuts the queue down: it accepts no more jobs, and server_queue_await() returns false once it
 * is empty. */
void server_queue_end(server_queue *queue);
/* Wakes the engine's thread, so that it goes through its loop once even without a job. */
void server_queue_poke(server_queue *queue);
void server_get_counts(server_queue *queue, server_counts *counts);

/* ---- Called by the engine's thread ---- */

/* Waits for a job, for a quarter of a second at most, unless jobs are active. Returns false if the
 * queue is shut down and empty. */
bool server_queue_await(server_queue *queue, bool is_active);
/* Removes the next job that can begin from the queue and returns it; NULL if there is none. Sets
 * *left if its client has left. */
server_job *server_queue_next(server_queue *queue, bool *left);
/* Puts a job back into the queue, because memory is short for it to begin or to continue. Returns
 * the session that it had, or NULL. */
moe_session *server_queue_put_back(server_queue *queue, server_job *job);
void server_queue_began(server_queue *queue, server_job *job, moe_session *session,
                        size_t n_cached);
/* Records how many tokens of the job's prompt have been evaluated. */
void server_queue_read(server_queue *queue, server_job *job, size_t n_read);
/* Makes the job DONE and returns the session that it had. The caller then releases its reference
 * with server_queue_drop(). */
moe_session *server_queue_finish(server_queue *queue, server_job *job, server_finish finish,
                                 int status, const moe_error *message);
void server_queue_drop(server_queue *queue, server_job *job);
/* Advances the clock of the job's client by this many tokens. The caller holds the lock. */
void server_queue_charge(server_queue *queue, const server_job *job, uint64_t n_tokens);
bool server_queue_is_cancelled(server_queue *queue, const server_job *job);

#endif
