/* SPDX-License-Identifier: MIT */
/* Pieces of text that tool calls are learned from and read out of. */
#ifndef SERVER_TOOL_TEXT_H
#define SERVER_TOOL_TEXT_H

#include <stdbool.h>
#include <stddef.h>

typedef struct server_span {
    const char *data;
    size_t size;
} server_span;

/* Results of matching and scanning, beside places in the text. */
#define SERVER_TEXT_DIFFERS ((size_t)-1)
#define SERVER_TEXT_SHORT   ((size_t)-2) /* the text ends before it can be told */

/* Stand in a literal for an id, for a colon with the call's number, for a word (true: the argument
 * is a text, false: it is JSON), and for the argument's key once more. */
enum { SERVER_TOOL_ID = 1, SERVER_TOOL_NUMBER = 2, SERVER_TOOL_WORD = 3, SERVER_TOOL_KEY = 4 };

static inline bool server_tool_is_mark(char c)
{
    return c >= SERVER_TOOL_ID && c <= SERVER_TOOL_KEY;
}

server_span server_span_of(const char *text);
server_span server_span_cut(server_span text, size_t from, size_t to);
/* Where word begins at or after a place; SERVER_TEXT_DIFFERS: nowhere. */
size_t server_span_find(server_span text, size_t from, const char *word);
bool server_span_is(server_span text, const char *word);
server_span server_span_trim(server_span text);
bool server_is_blank(server_span text);

/* What both begin or end with; a tag (<..> or [..]) is shared whole or not at all. */
size_t server_common_start(server_span a, server_span b);
size_t server_common_end(server_span a, server_span b);

/* The place behind the literal, which the text must have at that place. White space before and
 * between the literal's characters is ignored; of that at its end as much is taken as the literal
 * has. *id (may be NULL): the text at SERVER_TOOL_ID. */
size_t server_match(server_span text, size_t at, server_span literal, server_span *id);
size_t server_skip_space(server_span text, size_t at);
/* How many bytes at the end of the text may begin the literal. */
size_t server_begun(server_span text, server_span literal);
/* The place behind the JSON value (an object, array or string) that begins at `at`. */
size_t server_json_end(server_span text, size_t at);
/* The place behind the name that begins there: letters, digits and _ . / - */
size_t server_name_end(server_span text, size_t at);

#endif
