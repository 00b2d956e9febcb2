/* SPDX-License-Identifier: MIT */
/* Parses one tool call from the text of an answer. */
#ifndef SERVER_TOOL_CALL_H
#define SERVER_TOOL_CALL_H

#include "server_tool_source.h"

/* Literals shorter than this (in bytes) occur in ordinary text, so they cannot serve as the mark
 * of a call. */
enum { SERVER_SHORTEST_TRIGGER = 4 };

/* Parses the call that begins at `at`. Returns the position behind it, SERVER_TEXT_DIFFERS if
 * there is no call, or SERVER_TEXT_SHORT if the call is incomplete. An incomplete call holds its
 * name and, if its arguments have begun, the part of them that cannot change any more. first: a
 * section of calls may begin here. */
size_t server_tool_parse(const server_tool_source *source, server_span text, size_t at, bool first,
                         bool ends, server_tool_call *call);
/* Whether the format's calls have no mark around them: a bare JSON object, or a list. */
bool server_tool_is_bare(const server_tool_format *format);

#endif
