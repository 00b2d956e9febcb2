/* SPDX-License-Identifier: MIT */
/* Reads and writes arguments that are not JSON but literals of Python or Gemma. */
#ifndef SERVER_TOOL_LITERALS_H
#define SERVER_TOOL_LITERALS_H

#include <stdbool.h>

#include <json-c/json.h>

#include "cli_buffer.h"
#include "server_tool_format.h"

/* Reads the arguments behind after_name up to what closes them, and appends them as a JSON
 * object. Returns the position behind them, SERVER_TEXT_DIFFERS if this is not possible (or
 * memory is short), or SERVER_TEXT_SHORT if the text ends too early. In the last case the appended
 * text is the beginning of the object, whatever text follows. */
size_t server_literal_arguments(const server_tool_format *format, server_span text, size_t at,
                                cli_buffer *json);
/* Appends the calls as the model writes them, for a template that leaves out the calls of earlier
 * turns. */
bool server_write_calls(const server_tool_format *format, struct json_object *calls,
                        cli_buffer *out);
/* Appends the text, escaped as a part of a JSON string, without quotes. */
bool server_json_escape(cli_buffer *json, server_span text);

#endif
