/* SPDX-License-Identifier: MIT */
/* A job: the answer to one prompt, from its submission to its last token.
 *
 *   WAITING --(a session is free)--> RUNNING --(the text has ended)--> DONE
 *      |                                                                ^
 *      +----(refused for lack of memory, or its client has left)--------+
 *
 * If memory is short, a RUNNING job may be set back. It stays RUNNING, but loses its session and
 * waits in the queue again. Later it generates the same tokens once more, which are not sent again.
 *
 * A request for several answers has several jobs. The first one is their leader: the others
 * (followers) use its prompt and settings, wait until its prompt is evaluated, and continue from
 * its session. */
#ifndef SERVER_JOB_H
#define SERVER_JOB_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <moe/chat.h>
#include <moe/embedding.h>
#include <moe/grammar.h>
#include <moe/moe.h>
#include <moe/sampling.h>

#include "cli_buffer.h"
#include "server.h"
#include "server_stops.h"

enum { SERVER_MOST_STOP_IDS = 64 };

typedef enum server_job_state { SERVER_WAITING, SERVER_RUNNING, SERVER_DONE } server_job_state;

typedef enum server_finish {
    SERVER_FINISH_STOP,   /* the model ended its text */
    SERVER_FINISH_STRING, /* it wrote a stop string */
    SERVER_FINISH_LENGTH, /* max_tokens, or the context is full */
    SERVER_FINISH_FAILED  /* status and message say why */
} server_finish;

typedef struct server_job {
    /* Set before server_submit() and never changed afterwards. Followers point to what their leader
     * owns. */
    struct server_job *leader; /* NULL: leads itself, or is alone; holds a reference */
    int32_t *tokens;           /* free() */
    size_t n_tokens;           /* at least 1, below the context */
    moe_chat_prompt *prompt;   /* rendered messages, used to separate reasoning and answer; NULL: a
                                * raw prompt */
    moe_sampling sampling;
    moe_token_bias *biases; /* free() */
    size_t n_biases;
    moe_grammar *grammar;                   /* moe_grammar_close(); NULL: none */
    int32_t stop_ids[SERVER_MOST_STOP_IDS]; /* tokens that end the text and do not belong to it */
    size_t n_stop_ids;
    int n_top;           /* likely tokens in each report; -1: no reports */
    uint64_t max_tokens; /* UINT64_MAX: until the text ends or the context is full */
    bool ignore_eos;
    bool keeps_markup;   /* the text keeps control tokens, so that tool calls can be recognized */
    bool tells_progress; /* reports progress while the prompt is evaluated */
    bool tells_prompt;   /* also reports on the prompt's tokens */
    /* Only for embeddings (server_embedding.h): where each text ends among the tokens; NULL for all
     * other jobs. Followers point to what their leader owns. */
    size_t *text_ends; /* [n_texts]; free() */
    size_t n_texts, text_step;
    server_pooling pooling;
    bool normalizes;
    uint64_t client; /* the client that sent the request (server_queue.h) */

    /* Used only by the engine's thread. */
    const struct server_writer *writer;
    size_t at_text; /* of an embedding: the text that is being evaluated */
    moe_pool pool;  /* of an embedding; release its sums with free() */
    size_t n_told;  /* with tells_prompt: the prompt's tokens that were reported on */
    bool lost;      /* memory was short within a step */
    moe_text *text;
    moe_chat_reply *reply;
    server_stops stops;
    uint64_t n_repeated; /* tokens since the job last began; its client already has the first
                          * n_written */
    uint64_t written;    /* a hash of the n_written tokens */
    uint64_t repeated;   /* a hash of the n_repeated tokens */

    /* Protected by the queue's lock. */
    server_job_state state;
    moe_session *session; /* set by the engine's thread while the job is running */
    cli_buffer content;   /* text since the connection's thread last took it */
    cli_buffer reasoning;
    cli_buffer reports; /* one for each token, of server_report_size() */
    uint64_t charged;   /* bytes charged to the requests' memory for text that was not taken yet */
    uint64_t n_written;
    size_t n_cached;   /* tokens of the prompt that an earlier session had evaluated */
    size_t n_read;     /* tokens of the prompt that are evaluated by now */
    bool has_progress; /* with tells_progress: n_read has changed since it was last taken */
    uint64_t began_ns;
    server_finish finish;
    int status;
    moe_error message;
    bool cancelled;
    unsigned references;    /* held by the connection, by the queue until DONE, and by followers */
    pthread_cond_t changed; /* of a leader: also signals changes of its followers */
    struct server_job *next;
    uint64_t submitted_ns;
} server_job;

/* Returns the bytes that are used of a moe_token_report with n_top likely tokens. */
static inline size_t server_report_size(int n_top)
{
    return offsetof(moe_token_report, top) + (size_t)n_top * sizeof(moe_token_chance);
}

/* NULL when memory is short. */
server_job *server_job_new(void);
/* Returns a new job that has the leader's prompt and settings; NULL: memory is short. Call before
 * the jobs are submitted. */
server_job *server_job_follow(server_job *leader);
/* Frees a job to which nothing refers any more. Returns its leader, to which it held a reference
 * and which the caller must release, or NULL. */
server_job *server_job_free(server_job *job);
/* Returns the leader, or the job itself if it has none. The request's thread waits on this job's
 * condition variable. */
server_job *server_job_first(server_job *job);

#endif
