/* SPDX-License-Identifier: MIT */
/* Arguments of a call that are no JSON: Python's literals, or Gemma's. */
#ifndef SERVER_TOOL_LITERALS_H
#define SERVER_TOOL_LITERALS_H

#include <stdbool.h>

#include <json-c/json.h>

#include "cli_buffer.h"
#include "server_tool_format.h"

/* Reads what follows after_name: arguments up to what closes them. Appends them as a JSON object.
 * The place behind, SERVER_TEXT_DIFFERS (or memory is short), or SERVER_TEXT_SHORT; what was
 * appended by then is the beginning of the object however the text goes on. */
size_t server_literal_arguments(const server_tool_format *format, server_span text, size_t at,
                                cli_buffer *json);
/* Appends calls as the model writes them, for a template that leaves them out. */
bool server_write_calls(const server_tool_format *format, struct json_object *calls,
                        cli_buffer *out);
/* Appends the text as a part of a JSON string, without its quotes. */
bool server_json_escape(cli_buffer *json, server_span text);

#endif
