/* SPDX-License-Identifier: MIT */
/* The grammar that holds an answer to calls of tools. */
#ifndef SERVER_TOOL_GRAMMAR_H
#define SERVER_TOOL_GRAMMAR_H

#include "server_tool_rules.h"

/* Appends the grammar's text to out. False with an error that names the field. */
bool server_tool_grammar(const server_tool_rules *rules, cli_buffer *out, server_error *error);

#endif
