/* SPDX-License-Identifier: MIT */
/* Prepares a request with tools: converts its messages for the template, finds the format of
 * calls, and makes the answer's grammar. */
#include <string.h>

#include <moe/grammar.h>

#include "cli_json.h"
#include "server_memory.h"
#include "server_request.h"
#include "server_tool_grammar.h"
#include "server_tool_literals.h"

static bool has_calls(struct json_object *message)
{
    struct json_object *calls = json_object_object_get(message, "tool_calls");
    return json_object_is_type(calls, json_type_array) && json_object_array_length(calls) > 0;
}

/* Returns a new content for a message whose calls the template would leave out: the old content,
 * followed by the calls as text. */
static struct json_object *write_content(const server_tool_format *format,
                                         struct json_object *message)
{
    cli_buffer text = {NULL, 0, 0};
    const char *content = json_object_get_string(json_object_object_get(message, "content"));
    bool stored = (content == NULL || cli_buffer_append(&text, content, strlen(content))) &&
                  server_write_calls(format, json_object_object_get(message, "tool_calls"), &text);
    struct json_object *written = stored ? cli_json_new_text(text.data, text.size) : NULL;
    cli_buffer_free(&text);
    return written;
}

/* Clients send null or "" as the content of a message with calls; each template accepts only one
 * of the two, so this sets that one. */
static void adapt_contents(server_request *request, const server_tool_format *format)
{
    struct json_object *adapted = json_object_new_array();
    for (size_t i = 0; i < json_object_array_length(request->messages); i++) {
        struct json_object *message = json_object_array_get_idx(request->messages, i);
        struct json_object *content = json_object_object_get(message, "content");
        bool is_empty = content == NULL || (json_object_is_type(content, json_type_string) &&
                                            json_object_get_string_len(content) == 0);
        struct json_object *copy = NULL;
        bool is_hidden = format->is_hidden && has_calls(message);
        if (has_calls(message) && (is_empty || is_hidden)) {
            copy = json_object_new_object();
            json_object_object_foreach(message, key, value)
            {
                if (strcmp(key, "content") != 0) {
                    cli_json_put(copy, key, json_object_get(value));
                }
            }
            if (is_hidden) {
                cli_json_put(copy, "content", write_content(format, message));
            } else if (format->no_content) {
                cli_json_null(copy, "content");
            } else {
                cli_json_put(copy, "content", json_object_new_string(""));
            }
        }
        cli_json_append(adapted, copy != NULL ? copy : json_object_get(message));
    }
    json_object_put(request->converted);
    request->converted = request->messages = adapted;
}

static void append(cli_buffer *out, server_span text)
{
    for (size_t i = 0; i < text.size; i++) { /* special bytes for ids are left out */
        if (!server_tool_is_mark(text.data[i])) {
            (void)cli_buffer_append(out, text.data + i, 1);
        }
    }
}

struct json_object *server_describe_tools(const server_request *request)
{
    const server_tool_format *f = request->tool_format;
    const int plain = JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE;
    cli_buffer text = {NULL, 0, 0};
    append(&text, server_span_of("You can call these functions, described in JSON:\n"));
    for (size_t i = 0; i < json_object_array_length(request->tools); i++) {
        struct json_object *function =
            json_object_object_get(json_object_array_get_idx(request->tools, i), "function");
        append(&text, server_span_of(json_object_to_json_string_ext(function, plain)));
        append(&text, server_span_of("\n"));
    }
    append(&text, server_span_of("To call one, write this and nothing after it, with its name for "
                                 "NAME and its arguments:\n"));
    const server_span parts[] = {f->section_open, f->call_open, f->object_open,
                                 server_span_of("NAME"), f->after_name};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        append(&text, parts[i]);
    }
    if (f->kind == SERVER_TOOLS_TAGGED) {
        append(&text, f->key_open);
        append(&text, server_span_of("ARGUMENT"));
        append(&text, f->value_open);
        append(&text, server_span_of("VALUE"));
        append(&text, f->value_close);
    } else {
        append(&text, server_span_of("{\"ARGUMENT\": VALUE}"));
    }
    append(&text, f->object_close);
    append(&text, f->call_close);
    append(&text, f->section_close);
    struct json_object *told = cli_json_new_text(text.size == 0 ? "" : text.data, text.size);
    cli_buffer_free(&text);
    return told;
}

bool server_request_adapt_calls(server_request *request, server_tools *tools,
                                const moe_engine *engine, const server_options *options,
                                server_error *error)
{
    bool found = false;
    for (size_t i = 0; i < json_object_array_length(request->messages) && !found; i++) {
        found = has_calls(json_object_array_get_idx(request->messages, i));
    }
    if (found && !server_tools_find(tools, engine, options)) {
        return server_fail(error, 503, "overloaded", NULL, "out of memory for the request");
    }
    if (found && tools->format.kind != SERVER_TOOLS_UNKNOWN) {
        adapt_contents(request, &tools->format);
    }
    return true;
}

bool server_request_find_tools(server_request *request, server_tools *tools,
                               const moe_engine *engine, const server_options *options,
                               server_error *error)
{
    if (request->tools == NULL || request->tool_choice == SERVER_TOOL_NONE) {
        return true;
    }
    if (!server_tools_find(tools, engine, options)) {
        return server_fail(error, 503, "overloaded", NULL, "out of memory for the request");
    }
    bool known = tools->format.kind != SERVER_TOOLS_UNKNOWN;
    if (!tools->shown && !known) {
        return server_fail(error, 400, "unsupported_value", "tools",
                           "'tools': the model's chat template does not show tools to the model: "
                           "leave them out, or start the server with a template that does "
                           "(--chat-template FILE).");
    }
    request->tells_tools = !tools->shown;
    if (!known && request->tool_choice == SERVER_TOOL_REQUIRED) {
        return server_fail(error, 400, "unsupported_value", "tool_choice",
                           "'tool_choice': how this model writes calls cannot be told from its "
                           "chat template; only 'auto' and 'none' are possible.");
    }
    request->tool_format = known ? &tools->format : NULL;
    return true;
}

/* Extends a grammar so that reasoning may come before the answer, and the answer between its marks.
 */
static bool leave_reasoning(server_request *request, const moe_engine *engine, const char *field,
                            server_error *error)
{
    moe_error err = {""};
    moe_grammar *answer = request->job->grammar;
    int status = moe_chat_grammar_create_within(
        &request->job->grammar, engine, request->job->prompt, answer, &request->allowance, &err);
    if (status == MOE_OK && request->job->grammar != answer) {
        request->allowance.bytes_now -= moe_grammar_bytes(answer);
    }
    moe_grammar_close(&answer);
    return status == MOE_OK || server_work_fail(error, status, field, &err);
}

/* Replaces the grammar of the answer's form by one that also allows calls, or only calls if
 * must_call. */
static bool hold(server_request *request, const moe_engine *engine, bool must_call,
                 server_error *error)
{
    static const char any_object[] = "{\"type\": \"object\"}";
    server_job *job = request->job;
    cli_buffer text = {NULL, 0, 0};
    moe_error err = {""};
    struct json_object *form = NULL;
    if (request->has_form) {
        request->allowance.bytes_now -= moe_grammar_bytes(job->grammar);
        moe_grammar_close(&job->grammar);
        request->dropped[0] = '\0'; /* the schema is written again, or is not enforced at all */
        form = must_call               ? NULL
               : request->form != NULL ? json_object_get(request->form)
                                       : json_tokener_parse(any_object);
    }
    const server_tool_rules rules = {
        .engine = engine,
        .format = request->tool_format,
        .tools = request->tools,
        .name = request->tool_name == NULL ? NULL : json_object_get_string(request->tool_name),
        .several = !request->one_call,
        .prompt = job->prompt,
        .allowance = &request->allowance,
        .must_call = must_call,
        .form = form,
        .dropped = request->dropped};
    const uint64_t before = request->allowance.bytes_now;
    bool written = server_tool_grammar(&rules, &text, error);
    json_object_put(form);
    if (!written) {
        cli_buffer_free(&text);
        return false;
    }
    int status =
        moe_grammar_create_within(&job->grammar, text.data, text.size, &request->allowance, &err);
    cli_buffer_free(&text);
    request->allowance.bytes_now = before + moe_grammar_bytes(job->grammar);
    if (status != MOE_OK) {
        return server_work_fail(error, status, "tools", &err);
    }
    return request->tool_format->answer_close.size == 0 ||
           leave_reasoning(request, engine, "tools", error);
}

static bool has_strict(const server_request *request)
{
    bool found = false;
    for (size_t i = 0; i < json_object_array_length(request->tools) && !found; i++) {
        struct json_object *tool = json_object_array_get_idx(request->tools, i);
        struct json_object *function = json_object_object_get(tool, "function");
        found = json_object_get_boolean(json_object_object_get(function, "strict"));
    }
    return found;
}

/* Whether calls of this format begin with an unambiguous mark. Without one, or if calls are
 * messages in a channel, the server cannot tell early enough whether a text is a call. */
static bool has_clear_opening(const server_tool_format *format)
{
    return format->kind != SERVER_TOOLS_CHANNELS &&
           server_span_trim(format->section_open).size + server_span_trim(format->call_open).size >=
               4;
}

bool server_request_hold_to_tools(server_request *request, const moe_engine *engine,
                                  server_error *error)
{
    server_job *job = request->job;
    bool must_call = request->tool_choice == SERVER_TOOL_REQUIRED;
    if (request->tool_format == NULL) {
        return !request->has_form || job->grammar == NULL ||
               leave_reasoning(request, engine, "response_format", error);
    }
    job->keeps_markup = true;
    if (must_call && job->grammar != NULL && !request->has_form) {
        return server_fail(error, 400, "invalid_value", "tool_choice",
                           "'tool_choice' asks for a call, and another field holds the answer to "
                           "another form: give one of them.");
    }
    if (must_call) {
        return hold(request, engine, true, error);
    }
    if (request->has_form) {
        return request->tool_format->kind != SERVER_TOOLS_CHANNELS
                   ? hold(request, engine, false, error)
                   : server_fail(error, 400, "unsupported_value", "response_format",
                                 "'response_format' with 'tools' needs a 'tool_choice' of 'none' "
                                 "with this model, which writes calls in channels.");
    }
    if (job->grammar == NULL && has_strict(request)) {
        if (has_clear_opening(request->tool_format)) {
            return hold(request, engine, false, error);
        }
        server_note_dropped(request->dropped, "tools", "strict, as no call is asked for");
    }
    return true;
}
