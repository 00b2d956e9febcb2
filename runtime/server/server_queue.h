/* SPDX-License-Identifier: MIT */
/* Jobs between the threads of connections, which submit them and wait for their text, and the
 * engine's thread, which takes them and writes it. The queue is bounded.
 *
 * Who is next. A client (a key, else an address) has a clock of tokens: it advances by what the
 * client's jobs read and write. The client whose clock is lowest is next, so that one with many
 * requests does not hold up one with few; a client that comes anew starts where the lowest one at
 * work is. Of one client's jobs the shortest is next, and one that has waited for
 * SERVER_PATIENCE_SECONDS before it. */
#ifndef SERVER_QUEUE_H
#define SERVER_QUEUE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include <moe/moe.h>

#include "server_job.h"
#include "server_memory.h"

enum {
    SERVER_PATIENCE_SECONDS = 20,
    SERVER_MOST_CLIENTS = 256, /* whose clocks are kept */
};

typedef struct server_client {
    uint64_t name;
    uint64_t clock;  /* tokens read and written */
    uint64_t n_jobs; /* that wait or run */
} server_client;

typedef struct server_counts {
    uint64_t submitted, refused, finished, failed, cancelled, paused, set_back;
    uint64_t prompt_tokens, cached_tokens, written_tokens, steps;
    uint32_t active, idle, waiting;
    moe_engine_stats engine; /* after the last step */
    moe_pass_progress pass;  /* since then; all 0: nothing is told of it yet */
} server_counts;

typedef struct server_queue {
    size_t most_waiting; /* set at the start */
    server_memory_account *memory;
    pthread_mutex_t lock;
    /* Under the lock. */
    pthread_cond_t work;
    server_job *first; /* in the order of their coming */
    size_t n_waiting;
    bool ending;
    bool poked; /* the engine's thread goes round once, though nothing waits */
    server_counts counts;
    server_client clients[SERVER_MOST_CLIENTS];
    uint32_t n_clients;
} server_queue;

/* What a connection's thread learns of a job. */
typedef struct server_news {
    cli_buffer content; /* new text: the caller frees them */
    cli_buffer reasoning;
    cli_buffer reports;
    uint64_t charged; /* to the requests' memory, for them */
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

/* ---- Of a connection's thread ---- */

/* Submits all of them, or none: false when too many wait. */
bool server_submit(server_queue *queue, server_job *const *jobs, uint32_t n);
/* Returns when a job has text or another state than states[i], or after so many milliseconds; of a
 * job whose state is DONE nothing more is wanted. The
 * news are of jobs[returned]; of `n`: there are none. Looks at jobs[first] first. */
uint32_t server_wait(server_queue *queue, server_job *const *jobs, const server_job_state *states,
                     uint32_t n, uint32_t first, unsigned milliseconds, server_news *news);
void server_news_free(server_queue *queue, server_news *news);
/* Cancels the job if it is not DONE: its session is free after the step that is running. */
void server_job_release(server_queue *queue, server_job **job);
/* Ends the queue: it takes no more jobs, and server_queue_await() returns. */
void server_queue_end(server_queue *queue);
/* Makes the engine's thread go through its loop once. */
void server_queue_poke(server_queue *queue);
void server_get_counts(server_queue *queue, server_counts *counts);

/* ---- Of the engine's thread ---- */

/* Waits for a job, while none is active; false: the queue is ending and empty. */
bool server_queue_await(server_queue *queue, bool is_active);
/* Takes the next job off the queue that can begin; NULL: none. *left: its client has gone. */
server_job *server_queue_next(server_queue *queue, bool *left);
/* Puts a job back that could not begin for want of memory, or that is set back. Returns the session
 * that it had, or NULL. */
moe_session *server_queue_put_back(server_queue *queue, server_job *job);
void server_queue_began(server_queue *queue, server_job *job, moe_session *session,
                        size_t n_cached);
/* Notes how many of the prompt's tokens are evaluated. */
void server_queue_read(server_queue *queue, server_job *job, size_t n_read);
/* Makes the job DONE; returns the session that it had. The caller lets go of the job with
 * server_queue_drop(). */
moe_session *server_queue_finish(server_queue *queue, server_job *job, server_finish finish,
                                 int status, const moe_error *message);
void server_queue_drop(server_queue *queue, server_job *job);
/* With the lock held: the job's client has had so many tokens. */
void server_queue_charge(server_queue *queue, const server_job *job, uint64_t n_tokens);
bool server_queue_is_cancelled(server_queue *queue, const server_job *job);

#endif
