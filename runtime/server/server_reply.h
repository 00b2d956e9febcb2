/* SPDX-License-Identifier: MIT */
/* The JSON of answers, whole and in pieces. Each function appends a text to a buffer and is false
 * when memory is short. */
#ifndef SERVER_REPLY_H
#define SERVER_REPLY_H

#include <stdbool.h>
#include <stdint.h>

#include <json-c/json.h>

#include "cli_buffer.h"
#include "server_request.h"

/* What all pieces of an answer say alike. */
typedef struct server_reply {
    server_endpoint endpoint;
    bool include_usage;
    char id[48];
    char fingerprint[32];
    const char *model;
    int64_t created;
    size_t n_prompt;
    size_t n_cached;
    uint64_t n_written;
} server_reply;

void server_reply_begin(server_reply *reply, const server_request *request, const char *model,
                        uint64_t fingerprint);

/* The whole answer: one JSON object. */
bool server_reply_whole(const server_reply *reply, const cli_buffer *content,
                        const cli_buffer *reasoning, server_finish finish, cli_buffer *out);

/* Server-sent events. The first one of a chat names the role. */
bool server_reply_role(const server_reply *reply, cli_buffer *out);
bool server_reply_piece(const server_reply *reply, const cli_buffer *content,
                        const cli_buffer *reasoning, cli_buffer *out);
bool server_reply_end(const server_reply *reply, server_finish finish, cli_buffer *out);
bool server_reply_broken(const server_error *error, cli_buffer *out);

/* {"error": {...}} */
bool server_reply_error(const server_error *error, cli_buffer *out);
/* Appends the object as text, and releases it. */
bool server_append_json(struct json_object *object, cli_buffer *out);

#endif
