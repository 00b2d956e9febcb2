/* SPDX-License-Identifier: MIT */
/* Builds a conversation in the library's form, and renders it by the options. */
#ifndef CLI_MESSAGES_H
#define CLI_MESSAGES_H

#include <stdbool.h>
#include <stddef.h>

#include <json-c/json.h>
#include <moe/chat.h>
#include <moe/moe.h>

#include "cli_buffer.h"
#include "cli_options.h"

/* The value of --chat-template, read once. */
typedef struct cli_chat_template {
    const char *name; /* NULL: the file's, or the model's own */
    cli_buffer text;  /* the content of a file */
} cli_chat_template;

/* A value with a '/' in it, or ending in ".jinja", is a file. Returns an exit code. */
int cli_chat_template_load(cli_chat_template *chat_template, const cli_options *options);
void cli_chat_template_free(cli_chat_template *chat_template);
/* Whether turns can be rendered: reads the model's header alone, long before its weights. */
bool cli_has_template(const cli_options *options);

/* Adds {"role": role, "content": text} to the array, with "reasoning_content" if there is any (NULL
 * or "": none). False when memory is short. */
bool cli_add_message(struct json_object *messages, const char *role, const char *text,
                     const char *reasoning);

/* Renders the messages. `continues`: the model continues the last one. Returns an exit code;
 * release *prompt with moe_chat_prompt_close(). */
int cli_render_messages(moe_chat_prompt **prompt, const moe_engine *engine,
                        const cli_options *options, const cli_chat_template *chat_template,
                        struct json_object *messages, bool continues);

/* Renders --chat with one question: --system, the text, and --continue. Returns an exit code. */
int cli_render_question(moe_chat_prompt **prompt, const moe_engine *engine,
                        const cli_options *options, const cli_buffer *text);

#endif
