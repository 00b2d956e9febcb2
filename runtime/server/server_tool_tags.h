/* SPDX-License-Identifier: MIT */
/* Arguments of a call by tags. */
#ifndef SERVER_TOOL_TAGS_H
#define SERVER_TOOL_TAGS_H

#include "server_tool_source.h"

/* Appends the arguments from a place on, until what follows is none, to the call's. The place
 * behind them, SERVER_TEXT_DIFFERS, or SERVER_TEXT_SHORT: then the call has what is certain of
 * them. */
size_t server_tag_arguments(const server_tool_source *source, server_span text, size_t at,
                            server_tool_call *call);

#endif
