/* SPDX-License-Identifier: MIT */
/* Embeddings: requests of /v1/embeddings, /embedding, /api/embed and /api/embeddings. The texts of
 * a request are shared out among jobs, a session each, so that a pass has several of them; a job
 * evaluates its texts one after the other, always anew: nothing is taken from kept prompts. */
#ifndef SERVER_EMBEDDING_H
#define SERVER_EMBEDDING_H

#include "server_request.h"
#include "server_writing.h"

enum {
    SERVER_MOST_TEXTS = 2048, /* of a request */
    SERVER_NUMBER_SIZE = 20,  /* the most that a number of a vector takes in an answer */
};

#define SERVER_EMBEDS                                                                              \
    (SERVER_EMBEDDINGS | SERVER_EMBEDDING | SERVER_OLLAMA_EMBED | SERVER_OLLAMA_EMBEDDINGS)

/* ---- Of the workshop ---- */

/* Makes the request's jobs. */
bool server_take_texts(server_request *request, const moe_engine *engine,
                       const server_options *options, server_error *error);
/* Bytes that the jobs and their vectors take beside their tokens. */
uint64_t server_embedding_bytes(const server_request *request);

/* ---- Of the engine's thread ---- */

/* Begins with the job's text that is next. */
int server_embedding_begin(const server_writer *writer, server_job *job, moe_session *session,
                           moe_error *err);
/* Takes what the step evaluated. True when the job is finished. */
bool server_take_embedding(const server_writer *writer, server_job *job);

#endif
