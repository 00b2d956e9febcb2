/* SPDX-License-Identifier: MIT */
/* Embeddings: requests to /v1/embeddings, /embedding, /api/embed and /api/embeddings. The texts of
 * a request are distributed among several jobs with a session each, so that one pass evaluates
 * several texts. A job evaluates its texts one after the other, and always completely: kept prompts
 * are not used, because their hidden states are gone. */
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

/* ---- Called by the workshop's thread (server_workshop.h) ---- */

/* Tokenizes the request's texts and creates its jobs. */
bool server_take_texts(server_request *request, const moe_engine *engine,
                       const server_options *options, server_error *error);
/* Returns how many bytes the jobs and their vectors take, without the tokens. */
uint64_t server_embedding_bytes(const server_request *request);

/* ---- Called by the engine's thread ---- */

/* Gives the session the tokens of the job's next text. */
int server_embedding_begin(const server_writer *writer, server_job *job, moe_session *session,
                           moe_error *err);
/* Takes the results of a step. Returns true when all texts of the job are done. */
bool server_take_embedding(const server_writer *writer, server_job *job);

#endif
