/* SPDX-License-Identifier: MIT */
/* Separates tool calls from content in the text of an answer, which arrives in pieces. Text that
 * looks like a call but is none becomes content. */
#ifndef SERVER_TOOL_READER_H
#define SERVER_TOOL_READER_H

#include <stdbool.h>
#include <stdint.h>

#include <json-c/json.h>

#include "cli_buffer.h"
#include "server_tool_call.h"

enum { SERVER_MOST_TOOL_CALLS = 128, SERVER_LONGEST_TOOL_NAME = 128 };

typedef struct server_tool_reader {
    server_tool_source source;
    bool only_one; /* drops everything after the first call */
    bool streams;  /* reports calls before they are complete */
    /* Text that may be the beginning of a call, or is within one. */
    cli_buffer held;
    bool in_calls;
    bool has_section; /* a call of this section was read */
    bool has_text;    /* some of the answer was text */
    bool is_open;     /* the last call is not complete yet */
    bool is_broken;   /* the last call was reported but is no call: its rest is dropped */
    size_t next_look; /* examine the held text again when it has this size */
    server_tool_call *calls;
    uint32_t n_calls;
} server_tool_reader;

/* Adds the next piece of the answer. Appends to `content` the part that does not belong to calls.
 * ends: this was the last piece. False: memory is short. */
bool server_tool_read(server_tool_reader *reader, const char *text, size_t size, bool ends,
                      cli_buffer *content);
/* Whether the request allows only one call, and that call is complete. */
bool server_tool_reader_full(const server_tool_reader *reader);
void server_tool_reader_free(server_tool_reader *reader);

#endif
