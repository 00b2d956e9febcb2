/* SPDX-License-Identifier: MIT */
/* Turns the tokens of a step into a job's text, and ends the job. Only the engine's thread calls
 * these functions. */
#ifndef SERVER_WRITING_H
#define SERVER_WRITING_H

#include <stdbool.h>

#include <moe/moe.h>

#include "server_job.h"
#include "server_queue.h"
#include "server_sessions.h"

typedef struct server_writer {
    moe_engine *engine;
    server_queue *queue;
    server_sessions *sessions;
} server_writer;

/* Makes the job DONE. If `keep` is true, its session stays as an idle session. */
void server_finish_job(const server_writer *writer, server_job *job, server_finish finish,
                       int status, const moe_error *message, bool keep);
/* Hands news of an answer to the connection's thread. False: memory is short. */
bool server_publish(const server_writer *writer, server_job *job, const cli_buffer *content,
                    const char *reasoning, const moe_token_report *report, uint64_t n_tokens);
/* Makes the session's steps report on the prompt's tokens. */
int server_watch_prompt(const server_writer *writer, server_job *job, moe_session *session,
                        moe_error *err);
/* Takes the tokens that the step sampled. Returns true when the job is finished. */
bool server_take_tokens(const server_writer *writer, server_job *job);

#endif
