/* SPDX-License-Identifier: MIT */
/* Functions on pieces of text, used to learn formats of tool calls and to parse calls. */
#ifndef SERVER_TOOL_TEXT_H
#define SERVER_TOOL_TEXT_H

#include <stdbool.h>
#include <stddef.h>

typedef struct server_span {
    const char *data;
    size_t size;
} server_span;

/* Results of functions that otherwise return a position: the text does not match, or it ends too
 * early to decide. */
#define SERVER_TEXT_DIFFERS ((size_t)-1)
#define SERVER_TEXT_SHORT   ((size_t)-2) /* the text ends too early to decide */

/* Special bytes within a literal of a format. They stand for an id, for a colon and the call's
 * number, for a word that tells whether the argument is a text ("true": a string, "false": JSON),
 * for the argument's key, for the call's number alone, and for the JSON type of the argument. */
enum {
    SERVER_TOOL_ID = 1,
    SERVER_TOOL_NUMBER = 2,
    SERVER_TOOL_WORD = 3,
    SERVER_TOOL_KEY = 4,
    SERVER_TOOL_INDEX = 5,
    SERVER_TOOL_TYPE = 6
};

static inline bool server_tool_is_mark(char c)
{
    return c >= SERVER_TOOL_ID && c <= SERVER_TOOL_TYPE;
}

server_span server_span_of(const char *text);
server_span server_span_cut(server_span text, size_t from, size_t to);
/* Returns where the word begins at or behind `from`; SERVER_TEXT_DIFFERS: nowhere. */
size_t server_span_find(server_span text, size_t from, const char *word);
bool server_span_is(server_span text, const char *word);
server_span server_span_trim(server_span text);
bool server_is_blank(server_span text);

/* Return the common beginning, and the common end, of two texts. A tag (<..> or [..]) is taken as
 * a whole or not at all. At the beginning of a common end, <|sep|> is the rest of a tag of
 * Kimi-K3 (<|close|>tools<|sep|>), and not taken. */
size_t server_common_start(server_span a, server_span b);
size_t server_common_end(server_span a, server_span b);

/* Matches a literal at this position, and returns the position behind it. White space before and
 * between the literal's characters is ignored; white space at its end is taken only as far as the
 * literal has it. *id (may be NULL) is set to the text at SERVER_TOOL_ID. */
size_t server_match(server_span text, size_t at, server_span literal, server_span *id);
size_t server_skip_space(server_span text, size_t at);
/* Returns how many bytes at the end of the text may be the beginning of the literal. */
size_t server_begun(server_span text, server_span literal);
/* Returns the position behind the JSON object, array or string that begins at `at`. */
size_t server_json_end(server_span text, size_t at);
/* Returns the position behind the name that begins here. Names consist of letters, digits and _ .
 * / - */
size_t server_name_end(server_span text, size_t at);

#endif
