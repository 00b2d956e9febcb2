/* SPDX-License-Identifier: MIT */
/* Writes the grammar of answers that contain tool calls. */
#ifndef SERVER_TOOL_GRAMMAR_H
#define SERVER_TOOL_GRAMMAR_H

#include "server_tool_rules.h"

/* Appends the grammar's text to `out`. Returns false and sets an error that names the field. */
bool server_tool_grammar(const server_tool_rules *rules, cli_buffer *out, server_error *error);

#endif
