/* SPDX-License-Identifier: MIT */
/* The answer to one prompt, from its request to its text.
 *
 *   WAITING --(a session is free)--> RUNNING --(the text has ended)--> DONE
 *      |                                                                ^
 *      +----(refused for want of memory, or its client has left)--------+
 *
 * A job that memory is short for while it is RUNNING may be set back: it stays RUNNING, waits in
 * the queue again and loses its session. What it has written is written once more and not handed
 * out again: the text is the same.
 *
 * A request for several answers has several jobs. The first one leads: the others use its prompt
 * and settings, wait until its prompt is evaluated, and go on from its session. */
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
    /* Set by the request before server_submit(); not changed afterwards. What a leader owns its
     * followers point to. */
    struct server_job *leader; /* NULL: leads itself, or is alone; holds a reference */
    int32_t *tokens;           /* free() */
    size_t n_tokens;           /* at least 1, below the context */
    moe_chat_prompt *prompt;   /* of messages, whose reply is taken apart; NULL: a raw prompt */
    moe_sampling sampling;
    moe_token_bias *biases; /* free() */
    size_t n_biases;
    moe_grammar *grammar;                   /* moe_grammar_close(); NULL: none */
    int32_t stop_ids[SERVER_MOST_STOP_IDS]; /* tokens that end the text and are no part of it */
    size_t n_stop_ids;
    int n_top;           /* of reports; -1: none */
    uint64_t max_tokens; /* UINT64_MAX: until the text ends or the context is full */
    bool ignore_eos;
    bool keeps_markup;   /* calls of tools are to be told from the text */
    bool tells_progress; /* while the prompt is read */
    bool tells_prompt;   /* the prompt's tokens are reported on, too */
    /* Of an embedding (server_embedding.h): ends of texts among the tokens; NULL: it is none. What
     * the leader owns its followers point to. */
    size_t *text_ends; /* [n_texts]; free() */
    size_t n_texts, text_step;
    server_pooling pooling;
    bool normalizes;
    uint64_t client; /* whose request it is: fairness is between clients */

    /* Of the engine's thread. */
    const struct server_writer *writer;
    size_t at_text; /* of an embedding: the one that is evaluated */
    moe_pool pool;  /* likewise; its sums are free()'d */
    size_t n_told;  /* of tells_prompt: tokens of the prompt that were reported on */
    bool lost;      /* memory was short within a step */
    moe_text *text;
    moe_chat_reply *reply;
    server_stops stops;
    uint64_t n_repeated; /* tokens since the job began, or began again; those up to n_written are
                            known */
    uint64_t written;    /* a hash of the n_written tokens */
    uint64_t repeated;   /* a hash of the n_repeated tokens */

    /* Under the queue's lock. */
    server_job_state state;
    moe_session *session; /* set by the engine's thread while the job is running */
    cli_buffer content;   /* written since the connection's thread last looked */
    cli_buffer reasoning;
    cli_buffer reports; /* one for each token, of server_report_size() */
    uint64_t charged;   /* to the requests' memory, for what was not looked at yet */
    uint64_t n_written;
    size_t n_cached;   /* tokens of the prompt that were evaluated before */
    size_t n_read;     /* tokens of it that are evaluated now */
    bool has_progress; /* n_read is news, which tells_progress asks for */
    uint64_t began_ns;
    server_finish finish;
    int status;
    moe_error message;
    bool cancelled;
    unsigned references;    /* the connection's, the queue's until DONE, its followers' */
    pthread_cond_t changed; /* of a leader, for its followers, too */
    struct server_job *next;
    uint64_t submitted_ns;
} server_job;

/* Bytes of a moe_token_report with so many likely tokens, as far as it is used. */
static inline size_t server_report_size(int n_top)
{
    return offsetof(moe_token_report, top) + (size_t)n_top * sizeof(moe_token_chance);
}

/* NULL when memory is short. */
server_job *server_job_new(void);
/* A job with the same prompt and settings; NULL when memory is short. Before they are submitted. */
server_job *server_job_follow(server_job *leader);
/* Nothing refers to the job any more. Returns its leader, which loses a reference, or NULL. */
server_job *server_job_free(server_job *job);
/* The job whose condition the request's thread waits on. */
server_job *server_job_first(server_job *job);

#endif
