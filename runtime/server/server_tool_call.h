/* SPDX-License-Identifier: MIT */
/* One call of a tool, read out of a text. */
#ifndef SERVER_TOOL_CALL_H
#define SERVER_TOOL_CALL_H

#include <stdbool.h>

#include <json-c/json.h>

#include "cli_buffer.h"
#include "server_tool_format.h"

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

/* Reads one call at the place. The place behind it, SERVER_TEXT_DIFFERS, or
 * SERVER_TEXT_SHORT. first: a section may open here. */
size_t server_tool_parse(const server_tool_source *source, server_span text, size_t at, bool first,
                         bool ends, server_tool_call *call);
/* The tool's schema of that argument; NULL: there is none. */
struct json_object *server_tool_property(struct json_object *tools, server_span tool,
                                         server_span key);
bool server_tool_is_known(struct json_object *tools, server_span name);
void server_tool_call_free(server_tool_call *call);

#endif
