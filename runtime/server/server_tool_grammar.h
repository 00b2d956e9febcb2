/* SPDX-License-Identifier: MIT */
/* The grammar that holds an answer to calls of tools. */
#ifndef SERVER_TOOL_GRAMMAR_H
#define SERVER_TOOL_GRAMMAR_H

#include <stdbool.h>

#include <json-c/json.h>
#include <moe/allowance.h>
#include <moe/chat.h>
#include <moe/moe.h>

#include "cli_buffer.h"
#include "server_error.h"
#include "server_tool_format.h"

typedef struct server_tool_rules {
    const moe_engine *engine;
    const server_tool_format *format;
    struct json_object *tools; /* as in /v1/chat/completions */
    const char *name;          /* the only one that may be called; NULL: all */
    bool several;
    const moe_chat_prompt *prompt; /* reasoning may come before calls */
    moe_allowance *allowance;
} server_tool_rules;

/* Appends the grammar's text to out. False with an error that names the field. */
bool server_tool_grammar(const server_tool_rules *rules, cli_buffer *out, server_error *error);

#endif
