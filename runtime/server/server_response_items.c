/* SPDX-License-Identifier: MIT */
/* Converts the input items of /v1/responses to messages that templates know. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli_json.h"
#include "server_memory.h"
#include "server_reply.h"
#include "server_values.h"

static bool is_text(struct json_object *value)
{
    return json_object_is_type(value, json_type_string);
}

static bool refuse(server_error *error, const char *what)
{
    return server_fail(error, 400, "unsupported_value", "input", "'input': %s", what);
}

/* Appends the text of a content, which is a string or an array of text parts. */
static bool append_content(cli_buffer *out, struct json_object *content, server_error *error)
{
    static const char *const kinds[] = {"input_text", "output_text", "text", "reasoning_text",
                                        "summary_text"};
    if (is_text(content)) {
        return cli_buffer_append(out, json_object_get_string(content),
                                 (size_t)json_object_get_string_len(content));
    }
    if (!json_object_is_type(content, json_type_array)) {
        return refuse(error, "a content must be a string, or an array of parts of text.");
    }
    for (size_t i = 0; i < json_object_array_length(content); i++) {
        struct json_object *part = json_object_array_get_idx(content, i);
        struct json_object *text = json_object_object_get(part, "text");
        bool known = false;
        for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
            known |= server_is_text(json_object_object_get(part, "type"), kinds[k]);
        }
        if (!known || !is_text(text)) {
            return refuse(error, "parts of a content must be text (input_text, output_text).");
        }
        if (!append_content(out, text, error)) {
            return false;
        }
    }
    return true;
}

static struct json_object *new_message(struct json_object *messages, const char *role)
{
    struct json_object *message = json_object_new_object();
    server_put_text(message, "role", role);
    server_put_text(message, "content", "");
    cli_json_append(messages, message);
    return message;
}

/* Returns the last message if it is the assistant's; otherwise appends a new assistant's message
 * and returns that. */
static struct json_object *assistant_turn(struct json_object *messages)
{
    size_t n = json_object_array_length(messages);
    struct json_object *last = n == 0 ? NULL : json_object_array_get_idx(messages, n - 1);
    return server_is_text(json_object_object_get(last, "role"), "assistant")
               ? last
               : new_message(messages, "assistant");
}

static bool put_content(struct json_object *message, const char *key, struct json_object *content,
                        server_error *error)
{
    cli_buffer text = {NULL, 0, 0};
    bool read = append_content(&text, content, error);
    if (read) {
        cli_json_put(message, key, cli_json_new_text(text.size == 0 ? "" : text.data, text.size));
    }
    cli_buffer_free(&text);
    return read;
}

static bool add_message(struct json_object *messages, struct json_object *item, server_error *error)
{
    struct json_object *role = json_object_object_get(item, "role");
    if (!is_text(role)) {
        return refuse(error, "a message needs 'role'.");
    }
    bool directs = server_is_text(role, "developer") || server_is_text(role, "system");
    bool answers = server_is_text(role, "assistant");
    struct json_object *message =
        answers ? assistant_turn(messages)
                : new_message(messages, directs ? "system" : json_object_get_string(role));
    if (answers && json_object_get_string_len(json_object_object_get(message, "content")) > 0) {
        message = new_message(messages, "assistant");
    }
    return put_content(message, "content", json_object_object_get(item, "content"), error);
}

static bool add_call(struct json_object *messages, struct json_object *item, server_error *error)
{
    struct json_object *id = json_object_object_get(item, "call_id"),
                       *name = json_object_object_get(item, "name");
    struct json_object *arguments = json_object_object_get(item, "arguments");
    if (!is_text(id) || !is_text(name) || !is_text(arguments)) {
        return refuse(error, "a function_call needs 'call_id', 'name' and 'arguments'.");
    }
    struct json_object *message = assistant_turn(messages);
    struct json_object *calls = json_object_object_get(message, "tool_calls");
    if (calls == NULL) {
        calls = json_object_new_array();
        cli_json_put(message, "tool_calls", calls);
    }
    struct json_object *call = json_object_new_object();
    struct json_object *function = json_object_new_object();
    cli_json_put(call, "id", json_object_get(id));
    server_put_text(call, "type", "function");
    cli_json_put(function, "name", json_object_get(name));
    cli_json_put(function, "arguments", json_object_get(arguments));
    cli_json_put(call, "function", function);
    cli_json_append(calls, call);
    return true;
}

static bool add_item(struct json_object *messages, struct json_object *item, server_error *error)
{
    struct json_object *type = json_object_object_get(item, "type");
    if (type == NULL || server_is_text(type, "message")) {
        return add_message(messages, item, error);
    }
    if (server_is_text(type, "function_call")) {
        return add_call(messages, item, error);
    }
    if (server_is_text(type, "function_call_output")) {
        struct json_object *message = new_message(messages, "tool");
        if (!is_text(json_object_object_get(item, "call_id"))) {
            return refuse(error, "a function_call_output needs 'call_id'.");
        }
        cli_json_put(message, "tool_call_id",
                     json_object_get(json_object_object_get(item, "call_id")));
        return put_content(message, "content", json_object_object_get(item, "output"), error);
    }
    if (server_is_text(type, "reasoning")) {
        struct json_object *content = json_object_object_get(item, "content");
        return content == NULL ||
               put_content(new_message(messages, "assistant"), "reasoning_content", content, error);
    }
    return refuse(error, "items may be of type message, function_call, function_call_output and "
                         "reasoning.");
}

static bool add_items(struct json_object *messages, struct json_object *items, server_error *error)
{
    bool added = true;
    for (size_t i = 0; added && i < json_object_array_length(items); i++) {
        added = add_item(messages, json_object_array_get_idx(items, i), error);
    }
    return added;
}

/* ---- Earlier turns of the conversation ---- */

/* Adds the items of one kept answer to the messages. */
static bool add_kept(server_request *request, struct json_object *messages,
                     const server_kept_answer *answer, server_error *error)
{
    const uint64_t bytes =
        server_json_bytes(answer->text, answer->size) + (uint64_t)SERVER_TEXT_COPIES * answer->size;
    request->json_bytes += bytes;
    if (!server_work_take(&request->allowance, bytes, error) ||
        !server_work_step(&request->allowance, answer->size, error)) {
        return false;
    }
    struct json_tokener *tokener = json_tokener_new_ex(SERVER_DEEPEST_JSON);
    struct json_object *items = NULL;
    if (tokener != NULL) {
        (void)json_tokener_parse_ex(tokener, "[", 1);
        (void)json_tokener_parse_ex(tokener, answer->text, (int)answer->size);
        items = json_tokener_parse_ex(tokener, "]", 2);
        json_tokener_free(tokener);
    }
    bool added = items != NULL && add_items(messages, items, error);
    json_object_put(items);
    return added;
}

/* Adds the whole conversation that ends with this kept answer, from its beginning on. */
static bool add_conversation(server_request *request, struct json_object *messages,
                             const server_kept_answer *last, server_error *error)
{
    size_t n = 0;
    for (const server_kept_answer *at = last; at != NULL; at = at->before) {
        n++;
    }
    if (!server_work_take(&request->allowance, n * sizeof last, error)) {
        return false;
    }
    const server_kept_answer **answers = calloc(n, sizeof *answers);
    bool added = answers != NULL;
    size_t i = n;
    for (const server_kept_answer *at = last; added && at != NULL; at = at->before) {
        answers[--i] = at;
    }
    for (; added && i < n; i++) {
        added = add_kept(request, messages, answers[i], error);
    }
    free(answers);
    request->allowance.bytes_now -= n * sizeof last;
    return added;
}

/* Keeps the request's own items as part of the answer to come. Takes over the reference to the
 * answer before it. */
static void keep_input(server_request *request, server_kept_answer *before)
{
    struct json_object *item = NULL;
    size_t size = 0, ends = 0;
    if (is_text(request->input)) {
        item = json_object_new_object();
        server_put_text(item, "role", "user");
        cli_json_put(item, "content", json_object_get(request->input));
    } else {
        ends = 1; /* the brackets of the array */
    }
    const char *text = json_object_to_json_string_length(
        item == NULL ? request->input : item,
        JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE, &size);
    if (text != NULL && (item == NULL || cli_json_is_complete(item))) {
        request->answer =
            server_kept_begin(request->kept, request->client, before, text + ends, size - 2 * ends);
    } else if (before != NULL) {
        server_kept_release(request->kept, &before);
    }
    json_object_put(item);
}

bool server_convert_items(server_request *request, server_error *error)
{
    struct json_object *messages = json_object_new_array();
    server_kept_answer *before = NULL;
    if (request->previous[0] != '\0') {
        before = server_kept_find(request->kept, request->client, request->previous);
        if (before == NULL) {
            json_object_put(messages);
            return server_fail(error, 400, "previous_response_not_found", "previous_response_id",
                               "'previous_response_id': no such answer is kept (any more): send "
                               "the earlier items in 'input'; what is the same is not evaluated "
                               "again.");
        }
    }
    bool goes_on = before == NULL || add_conversation(request, messages, before, error);
    if (goes_on && is_text(request->input)) {
        goes_on = put_content(new_message(messages, "user"), "content", request->input, error);
    } else if (goes_on) {
        goes_on = add_items(messages, request->input, error);
    }
    if (goes_on && request->keeps) {
        keep_input(request, before);
    } else if (before != NULL) {
        server_kept_release(request->kept, &before);
    }
    json_object_put(request->converted);
    request->converted = request->messages = messages;
    if (!goes_on && error->status == 0) {
        return server_fail(error, 503, "overloaded", NULL, "out of memory for the request");
    }
    return goes_on;
}

/* ---- Fields ---- */

bool server_read_input(server_reading *r, struct json_object *value)
{
    r->request->input = value;
    return is_text(value) ||
           (json_object_is_type(value, json_type_array) && json_object_array_length(value) > 0) ||
           server_wrong(r, "a string, or an array of at least one item");
}

bool server_read_instructions(server_reading *r, struct json_object *value)
{
    r->request->system = value;
    return is_text(value) || server_wrong(r, "a string");
}

/* Reads {"format": ..}, which means the same as response_format. */
bool server_read_text_format(server_reading *r, struct json_object *value)
{
    if (!json_object_is_type(value, json_type_object)) {
        return server_wrong(r, "an object with 'format'");
    }
    json_object_object_foreach(value, key, member)
    {
        if (strcmp(key, "format") == 0 && member != NULL) {
            if (!server_read_response_format(r, member)) {
                return false;
            }
        } else if (strcmp(key, "verbosity") == 0 && member != NULL) {
            if (!server_read_verbosity(r, member)) {
                return false;
            }
        } else if (!server_is_nothing(member)) {
            return server_fail(r->error, 400, "unsupported_parameter", r->name,
                               "'text' has 'format' and 'verbosity', and nothing else.");
        }
    }
    return true;
}

/* Reads {"effort": .., "summary": ..}. A summary is accepted but not made, because the answer
 * contains the reasoning itself. */
bool server_read_reasoning(server_reading *r, struct json_object *value)
{
    if (!json_object_is_type(value, json_type_object)) {
        return server_wrong(r, "an object");
    }
    json_object_object_foreach(value, key, member)
    {
        bool is_summary = strcmp(key, "summary") == 0 || strcmp(key, "generate_summary") == 0;
        if (strcmp(key, "effort") == 0 && member != NULL) {
            if (!server_read_effort(r, member)) {
                return false;
            }
        } else if (!is_summary && !server_is_nothing(member)) {
            return server_unsupported(r, value);
        }
    }
    return true;
}

/* Reads `include`. The only entry that is accepted and has no effect is encrypted reasoning: the
 * answer contains the reasoning in plain text anyway. */
bool server_read_include(server_reading *r, struct json_object *value)
{
    for (size_t i = 0;
         json_object_is_type(value, json_type_array) && i < json_object_array_length(value); i++) {
        if (!server_is_text(json_object_array_get_idx(value, i), "reasoning.encrypted_content")) {
            return server_unsupported(r, value);
        }
    }
    return json_object_is_type(value, json_type_array) || server_wrong(r, "an array");
}

bool server_read_truncation(server_reading *r, struct json_object *value)
{
    return server_is_text(value, "disabled") ||
           server_fail(r->error, 400, "unsupported_value", r->name,
                       "'truncation' must be 'disabled': this server cuts no prompt.");
}

bool server_read_previous(server_reading *r, struct json_object *value)
{
    if (!is_text(value) || json_object_get_string_len(value) == 0) {
        return server_wrong(r, "the id of an earlier answer");
    }
    snprintf(r->request->previous, sizeof r->request->previous, "%s",
             json_object_get_string(value));
    return true;
}
