/* SPDX-License-Identifier: MIT */
/* Tool calls, and the data that the parser needs to recognize them. */
#ifndef SERVER_TOOL_SOURCE_H
#define SERVER_TOOL_SOURCE_H

#include <stdbool.h>

#include <json-c/json.h>

#include "cli_buffer.h"
#include "server_tool_format.h"

enum { SERVER_DEEPEST_ARGUMENTS = 64 };

/* The input of the parser of calls. */
typedef struct server_tool_source {
    const server_tool_format *format; /* NULL: the text has no calls */
    struct json_object *tools;        /* as in /v1/chat/completions; the request's */
} server_tool_source;

typedef struct server_tool_call {
    char id[72]; /* the model's id, or 9 letters and digits, which most templates accept */
    cli_buffer name;
    cli_buffer arguments; /* a JSON object */
} server_tool_call;

/* Parses the text as one JSON value. NULL: it is not valid JSON, or the value is null. */
struct json_object *server_tool_json(server_span text);
/* Returns the schema of an argument of a tool; NULL: there is none. */
struct json_object *server_tool_property(struct json_object *tools, server_span tool,
                                         server_span key);
bool server_tool_is_known(struct json_object *tools, server_span name);
/* Makes up an id for a call, if the model wrote none. */
void server_tool_make_id(server_tool_call *call);
void server_tool_call_free(server_tool_call *call);

#endif
