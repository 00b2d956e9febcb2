/* SPDX-License-Identifier: MIT */
#include "server_tool_probe.h"

#include <stdio.h>
#include <string.h>

#include <moe/chat.h>

#define USER "{\"role\": \"user\", \"content\": \"moequestion\"}"

static const char probe_tools[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"moeother\", \"description\": \"moe\", "
    "\"parameters\": {\"type\": \"object\", \"properties\": {\"moex\": {\"type\": \"string\", "
    "\"description\": \"moe\"}}, \"required\": [\"moex\"]}}}]";

typedef struct probe {
    const moe_engine *engine;
    const server_options *options;
    const char *tools;
} probe;

/* Renders the messages by the chat template. Returns NULL if the template rejects them. */
static moe_chat_prompt *render(const probe *p, const char *messages, bool opens)
{
    moe_chat_prompt *out = NULL;
    moe_chat_options chat;
    moe_chat_options_init(&chat);
    chat.messages = messages;
    chat.tools = p->tools;
    chat.template_name = p->options->chat_template_name;
    chat.template_text = p->options->chat_template_text;
    chat.thinking = p->options->thinking;
    chat.add_generation_prompt = opens;
    return moe_chat_render(&out, p->engine, &chat, NULL) == MOE_OK ? out : NULL;
}

static server_span text_of(const moe_chat_prompt *prompt)
{
    size_t size = 0;
    const char *text = prompt == NULL ? NULL : moe_chat_prompt_text(prompt, &size);
    return (server_span){text, size};
}

static int add_call(char *out, size_t size, const char *id, const char *name)
{
    return snprintf(out, size,
                    "{\"id\": \"%s\", \"type\": \"function\", \"function\": {\"name\": \"%s\", "
                    "\"arguments\": \"{\\\"" SERVER_PROBE_KEY_A "\\\": \\\"" SERVER_PROBE_VALUE_A
                    "\\\", \\\"" SERVER_PROBE_KEY_B "\\\": \\\"" SERVER_PROBE_VALUE_B "\\\"}\"}}",
                    id, name);
}

/* Renders a conversation that ends with one call, or with two. */
static moe_chat_prompt *render_calls(const probe *p, const char *content, bool ids_have_names,
                                     bool two)
{
    char text[2048], first[512], second[512];
    add_call(first, sizeof first,
             ids_have_names ? "functions." SERVER_PROBE_NAME_A SERVER_PROBE_NUMBER
                            : SERVER_PROBE_ID,
             SERVER_PROBE_NAME_A);
    add_call(second, sizeof second,
             ids_have_names ? "functions." SERVER_PROBE_NAME_B SERVER_PROBE_NUMBER
                            : SERVER_PROBE_ID,
             SERVER_PROBE_NAME_B);
    snprintf(text, sizeof text,
             "[" USER ", {\"role\": \"assistant\", \"content\": %s, \"tool_calls\": [%s%s%s]}]",
             content, first, two ? ", " : "", two ? second : "");
    return render(p, text, false);
}

static bool has_name(const moe_chat_prompt *prompt)
{
    return prompt != NULL &&
           server_span_find(text_of(prompt), 0, SERVER_PROBE_NAME_A) != SERVER_TEXT_DIFFERS;
}

/* Learns how the template writes arguments that it gets as a text, not as an object. */
static bool learn_block(server_tool_format *format, const probe *p)
{
    static const char text[] =
        "[" USER ", {\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"id\": "
        "\"" SERVER_PROBE_ID "\", \"type\": \"function\", \"function\": {\"name\": "
        "\"" SERVER_PROBE_NAME_A "\", \"arguments\": \"" SERVER_PROBE_WHOLE "\"}}]}]";
    moe_chat_prompt *one = render(p, text, false);
    bool stored = one == NULL || server_tool_learn_block(format, text_of(one));
    moe_chat_prompt_close(&one);
    return stored;
}

/* Adds the facts that the table of built-in formats has about this template. */
static void add_named(server_tool_format *format, const probe *p)
{
    moe_chat_prompt *prompt = render(p, "[" USER "]", true);
    moe_chat_prompt *call = render_calls(p, "\"\"", false, false);
    if (!server_tool_named(format, text_of(prompt), text_of(call))) {
        server_tool_add_known(format, text_of(prompt));
    }
    moe_chat_prompt_close(&prompt);
    moe_chat_prompt_close(&call);
}

/* Learns the format. Tries several forms of the conversation, because templates differ in the
 * content that they accept beside calls, and some write an id instead of the tool's name. */
static bool learn(server_tool_format *format, const probe *p)
{
    static const char *const contents[] = {"\"\"", "null"};
    bool stored = true;
    moe_chat_prompt *answer = render(
        p, "[" USER ", {\"role\": \"assistant\", \"content\": \"" SERVER_PROBE_CONTENT "\"}]",
        false);
    for (unsigned i = 0; i < 4 && stored && answer != NULL && format->kind == SERVER_TOOLS_UNKNOWN;
         i++) {
        moe_chat_prompt *one = render_calls(p, contents[i % 2], i >= 2, false);
        if (has_name(one)) {
            moe_chat_prompt *two = render_calls(p, contents[i % 2], i >= 2, true);
            stored = server_tool_learn(format, text_of(answer), text_of(one), text_of(two));
            format->no_content = i % 2 == 1;
            moe_chat_prompt_close(&two);
        }
        moe_chat_prompt_close(&one);
    }
    moe_chat_prompt_close(&answer);
    if (stored && format->kind == SERVER_TOOLS_TAGGED) {
        stored = learn_block(format, p);
    }
    if (stored) {
        add_named(format, p);
    }
    return stored;
}

static bool shows_tools(probe *p)
{
    moe_chat_prompt *with = render(p, "[" USER "]", true);
    p->tools = NULL;
    moe_chat_prompt *without = render(p, "[" USER "]", true);
    p->tools = probe_tools;
    server_span a = text_of(with), b = text_of(without);
    bool differs = a.size != b.size || (a.size > 0 && memcmp(a.data, b.data, a.size) != 0);
    moe_chat_prompt_close(&with);
    moe_chat_prompt_close(&without);
    return a.data != NULL && differs;
}

void server_tools_init(server_tools *tools)
{
    memset(tools, 0, sizeof *tools);
    pthread_mutex_init(&tools->lock, NULL);
}

bool server_tools_find(server_tools *tools, const moe_engine *engine, const server_options *options)
{
    probe p = {engine, options, probe_tools};
    pthread_mutex_lock(&tools->lock);
    if (!tools->known) {
        tools->shown = shows_tools(&p);
        tools->known = learn(&tools->format, &p);
    }
    bool known = tools->known;
    pthread_mutex_unlock(&tools->lock);
    return known;
}

void server_tools_free(server_tools *tools)
{
    server_tool_format_free(&tools->format);
    pthread_mutex_destroy(&tools->lock);
}
