/* SPDX-License-Identifier: MIT */
/* One call of a tool, read out of a text. */
#ifndef SERVER_TOOL_CALL_H
#define SERVER_TOOL_CALL_H

#include "server_tool_source.h"

/* Shorter literals occur in ordinary text, so they cannot mark a call. */
enum { SERVER_SHORTEST_TRIGGER = 4 };

/* Reads one call that begins at the place. Returns the place behind it, SERVER_TEXT_DIFFERS if
 * there is no call, or SERVER_TEXT_SHORT if it has not ended: then the call has its name, and the
 * certain part of its arguments if these have begun. first: a section may open here. */
size_t server_tool_parse(const server_tool_source *source, server_span text, size_t at, bool first,
                         bool ends, server_tool_call *call);
/* Whether calls have no mark around them: a bare object, or a list. */
bool server_tool_is_bare(const server_tool_format *format);

#endif
