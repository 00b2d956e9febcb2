/* SPDX-License-Identifier: MIT */
/* What a request asks for: its JSON, checked field by field. A field that would change the answer
 * and cannot be honoured is an error that names it. */
#ifndef SERVER_REQUEST_H
#define SERVER_REQUEST_H

#include <stdbool.h>

#include <json-c/json.h>
#include <moe/moe.h>

#include "server.h"
#include "server_error.h"
#include "server_queue.h"

typedef enum server_endpoint {
    SERVER_CHAT = 1 << 0,       /* /v1/chat/completions */
    SERVER_COMPLETION = 1 << 1, /* /v1/completions */
    SERVER_TOKENIZE = 1 << 2,   /* /tokenize */
    SERVER_DETOKENIZE = 1 << 3, /* /detokenize */
    SERVER_TEMPLATE = 1 << 4,   /* /apply-template */
    SERVER_MESSAGES = 1 << 5,   /* /v1/messages */
    SERVER_COUNT = 1 << 6       /* /v1/messages/count_tokens */
} server_endpoint;

enum { SERVER_MOST_CHOICES = 16 };

typedef struct server_request {
    server_endpoint endpoint;
    server_job *job;                       /* the first of jobs, while the fields are read */
    server_job *jobs[SERVER_MOST_CHOICES]; /* an answer each; released by server_request_free() */
    uint32_t n_jobs;
    struct json_object *body; /* owned; the fields below point into it */
    struct json_object *messages;
    struct json_object *system; /* of SERVER_MESSAGES: a string, or blocks of text */
    struct json_object *template_arguments;
    struct json_object *prompt;  /* a string, or an array of ids */
    struct json_object *content; /* of tokenize */
    struct json_object *tokens;  /* of detokenize */
    bool stream;
    bool include_usage;
    bool add_special;
    bool plain_text; /* tokenize: control tokens are not recognized */
    bool has_sampling_seed;
    bool has_max_tokens;
    bool logprobs;
    int top_logprobs; /* -1: not given */
} server_request;

/* Reads the body's fields into the request. */
bool server_request_read(server_request *request, const server_options *options, const char *body,
                         size_t size, server_error *error);
/* Renders or tokenizes what the request's job is to answer. */
bool server_request_prepare(server_request *request, const moe_engine *engine,
                            const server_options *options, server_error *error);
/* Renders the messages. Release *out with moe_chat_prompt_close(). */
bool server_render(moe_chat_prompt **out, const server_request *request, const moe_engine *engine,
                   const server_options *options, server_error *error);
void server_request_free(server_request *request, server_queue *queue);

/* Of server_fields.c: reads one field into the request. */
bool server_read_field(server_request *request, const server_options *options, const char *name,
                       struct json_object *value, server_error *error);

#endif
