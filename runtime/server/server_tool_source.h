/* SPDX-License-Identifier: MIT */
/* Calls of tools, and what they are read by. */
#ifndef SERVER_TOOL_SOURCE_H
#define SERVER_TOOL_SOURCE_H

#include <stdbool.h>

#include <json-c/json.h>

#include "cli_buffer.h"
#include "server_tool_format.h"

enum { SERVER_DEEPEST_ARGUMENTS = 64 };

/* What calls are read by. */
typedef struct server_tool_source {
    const server_tool_format *format; /* NULL: the text has no calls */
    struct json_object *tools;        /* as in /v1/chat/completions; the request's */
} server_tool_source;

typedef struct server_tool_call {
    char id[72]; /* the model's own, or 9 letters and digits, the form that most templates take */
    cli_buffer name;
    cli_buffer arguments; /* a JSON object */
} server_tool_call;

/* The value that the text is; NULL: it is none, or null. */
struct json_object *server_tool_json(server_span text);
/* The tool's schema of that argument; NULL: there is none. */
struct json_object *server_tool_property(struct json_object *tools, server_span tool,
                                         server_span key);
bool server_tool_is_known(struct json_object *tools, server_span name);
/* An id, if the model has written none. */
void server_tool_make_id(server_tool_call *call);
void server_tool_call_free(server_tool_call *call);

#endif
