/* SPDX-License-Identifier: MIT */
/* Reads arguments of a call that are written as keys and values between tags. */
#ifndef SERVER_TOOL_TAGS_H
#define SERVER_TOOL_TAGS_H

#include "server_tool_source.h"

/* Reads arguments from this position on, as long as there are more, and appends them to the
 * call's arguments. Returns the position behind them, SERVER_TEXT_DIFFERS, or SERVER_TEXT_SHORT.
 * In the last case the call holds the part of the arguments that cannot change any more. */
size_t server_tag_arguments(const server_tool_source *source, server_span text, size_t at,
                            server_tool_call *call);

/* Writes a key as the format's template does, and takes back what was replaced for that. */
bool server_write_key(const server_tool_format *format, server_span key, cli_buffer *out);
bool server_read_key(const server_tool_format *format, server_span key, cli_buffer *out);

#endif
