/* SPDX-License-Identifier: MIT */
/* One thread owns the engine and decodes all active jobs as one batch; threads of connections hand
 * jobs over by a bounded queue and wait for their text.
 *
 *   WAITING --(a session is free: begin_job)--> RUNNING --(finish_job)--> DONE
 *      |                                                                   ^
 *      +------(refused for want of memory, or its client has left)---------+
 *
 * Sessions of finished jobs stay idle, so that a job whose prompt begins likewise goes on from
 * there. Active and idle ones together are never more than `parallel`, for which memory is
 * planned. */
#ifndef SERVER_SCHEDULER_H
#define SERVER_SCHEDULER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include <moe/chat.h>
#include <moe/moe.h>

#include "cli_buffer.h"
#include "server_stops.h"

typedef enum server_job_state { SERVER_WAITING, SERVER_RUNNING, SERVER_DONE } server_job_state;

typedef enum server_finish {
    SERVER_FINISH_STOP,   /* the model ended its text, or wrote a stop string */
    SERVER_FINISH_LENGTH, /* max_tokens, or the context is full */
    SERVER_FINISH_FAILED  /* status and message say why */
} server_finish;

/* The answer to one prompt. */
typedef struct server_job {
    /* Set by the request before server_submit(); not changed afterwards. */
    int32_t *tokens;         /* free() */
    size_t n_tokens;         /* at least 1, below the context */
    moe_chat_prompt *prompt; /* of messages, whose reply is taken apart; NULL: a raw prompt */
    moe_sampling sampling;
    uint64_t max_tokens; /* UINT64_MAX: until the text ends or the context is full */
    bool ignore_eos;

    /* Of the engine's thread. */
    moe_text *text;
    moe_chat_reply *reply;
    server_stops stops;

    /* Under the scheduler's lock. */
    server_job_state state;
    moe_session *session; /* set by the engine's thread while the job is running */
    cli_buffer content;   /* written since the connection's thread last looked */
    cli_buffer reasoning;
    uint64_t n_written;
    size_t n_cached; /* tokens of the prompt that were evaluated before */
    server_finish finish;
    int status;
    moe_error message;
    bool cancelled;
    unsigned references; /* the connection's, and the scheduler's until DONE */
    pthread_cond_t changed;
    struct server_job *next; /* in the queue */
} server_job;

/* What a connection's thread learns of its job. */
typedef struct server_news {
    cli_buffer content; /* new text: the caller frees both */
    cli_buffer reasoning;
    server_job_state state;
    server_finish finish;
    int status;
    moe_error message;
    uint64_t n_written;
    size_t n_cached;
} server_news;

typedef struct server_counts {
    uint64_t submitted, refused, finished, failed, cancelled;
    uint64_t prompt_tokens, cached_tokens, written_tokens, steps;
    uint32_t active, idle, waiting;
    moe_engine_stats engine; /* after the last step */
} server_counts;

typedef struct server_scheduler server_scheduler;

/* Starts the engine's thread. NULL when memory is short or no thread can be had. */
server_scheduler *server_scheduler_start(moe_engine *engine, uint32_t parallel,
                                         size_t most_waiting);
/* Every job must be DONE. Ends the thread and closes the sessions. */
void server_scheduler_close(server_scheduler **scheduler);

/* NULL when memory is short. */
server_job *server_job_new(void);
/* Cancels the job if it is not DONE: its session is free after the step that is running. */
void server_job_release(server_scheduler *scheduler, server_job **job);

/* False when as many wait as may. */
bool server_submit(server_scheduler *scheduler, server_job *job);
/* Returns when there is text, the state is another than `state`, or after so many milliseconds. */
void server_wait(server_scheduler *scheduler, server_job *job, server_job_state state,
                 unsigned milliseconds, server_news *news);
void server_news_free(server_news *news);
void server_get_counts(server_scheduler *scheduler, server_counts *counts);

#endif
