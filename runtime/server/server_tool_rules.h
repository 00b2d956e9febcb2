/* SPDX-License-Identifier: MIT */
/* Builds the text of a grammar for tool calls. */
#ifndef SERVER_TOOL_RULES_H
#define SERVER_TOOL_RULES_H

#include <stdbool.h>

#include <json-c/json.h>
#include <moe/allowance.h>
#include <moe/chat.h>
#include <moe/moe.h>

#include "cli_buffer.h"
#include "server_error.h"
#include "server_tool_format.h"

enum { SERVER_RULES_MOST_TEXT = 1 << 20 };

typedef struct server_tool_rules {
    const moe_engine *engine;
    const server_tool_format *format;
    struct json_object *tools; /* as in /v1/chat/completions */
    const char *name;          /* the only one that may be called; NULL: all */
    bool several;
    const moe_chat_prompt *prompt; /* reasoning may come before calls */
    moe_allowance *allowance;
    bool must_call;           /* the answer must be calls; otherwise text may come before or instead
                               * of calls */
    struct json_object *form; /* a schema that an answer without calls follows; NULL: any text */
    char *dropped;            /* keywords that are not enforced (server_note_dropped()) */
} server_tool_rules;

typedef struct server_rules_text {
    const server_tool_rules *rules;
    server_error *error;
    cli_buffer out;
    bool failed;      /* memory was short, or the text is too long */
    const char *tool; /* the tool whose schema is being written */
    unsigned n_endings;
    bool has_any;     /* the rules for a literal of any type have been added */
    const char *word; /* what SERVER_TOOL_WORD and SERVER_TOOL_KEY stand for; NULL: nothing */
    const char *key;
    const char *type; /* what SERVER_TOOL_TYPE stands for; "": any but "string" */
} server_rules_text;

void server_rules_add_bytes(server_rules_text *g, const char *bytes, size_t size);
void server_rules_add(server_rules_text *g, const char *text);
/* WORD-NUMBER */
void server_rules_add_name(server_rules_text *g, const char *word, size_t number);
/* Appends the text as a quoted literal. */
void server_rules_add_quoted(server_rules_text *g, server_span text);
/* Appends a literal of the format: texts, control tokens, and its special bytes
 * (server_tool_text.h). */
void server_rules_add_literal(server_rules_text *g, server_span text);
/* Adds a rule for any text up to the mark, and sets name[] to its name. */
void server_rules_add_text(server_rules_text *g, server_span mark, char name[32]);
/* Adds the rules of a schema, of which the first is PREFIX-root. Without `strict`, keywords that
 * cannot be enforced are left out and reported under the tool's name. */
bool server_rules_add_schema(server_rules_text *g, struct json_object *schema, const char *prefix,
                             bool strict);
/* Returns the schema together with the definitions of the whole schema, to which its references
 * point. */
struct json_object *server_rules_whole(struct json_object *parameters, struct json_object *schema);
bool server_rules_is_required(struct json_object *parameters, const char *key);

#endif
