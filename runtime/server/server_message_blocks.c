/* SPDX-License-Identifier: MIT */
/* Converts messages of Anthropic's interface, whose content is an array of blocks, to the messages
 * that chat templates know. */
#include <stdio.h>
#include <string.h>

#include "cli_json.h"
#include "server_reply.h"
#include "server_request.h"

static bool is_type(struct json_object *block, const char *type)
{
    struct json_object *value = json_object_object_get(block, "type");
    return json_object_is_type(value, json_type_string) &&
           strcmp(json_object_get_string(value), type) == 0;
}

static bool refuse(server_error *error, const char *what)
{
    return server_fail(error, 400, "unsupported_value", "messages", "'messages': %s", what);
}

static struct json_object *new_message(const char *role, struct json_object *content)
{
    struct json_object *message = json_object_new_object();
    server_put_text(message, "role", role);
    cli_json_put(message, "content", content);
    return message;
}

/* Appends the text of a content: a string, or text blocks. False: the content has other blocks. */
static bool append_text(cli_buffer *out, struct json_object *content)
{
    if (json_object_is_type(content, json_type_string)) {
        return cli_buffer_append(out, json_object_get_string(content),
                                 (size_t)json_object_get_string_len(content));
    }
    bool is_array = json_object_is_type(content, json_type_array);
    for (size_t i = 0; is_array && i < json_object_array_length(content); i++) {
        struct json_object *block = json_object_array_get_idx(content, i);
        if (!is_type(block, "text") || !append_text(out, json_object_object_get(block, "text"))) {
            return false;
        }
    }
    return is_array || content == NULL;
}

static struct json_object *take_text(cli_buffer *text)
{
    struct json_object *value = cli_json_new_text(text->size == 0 ? "" : text->data, text->size);
    cli_buffer_free(text);
    return value;
}

/* Converts a block {"type": "tool_result", "tool_use_id": .., "content": ..} to a message of the
 * role `tool`. */
static bool add_result(struct json_object *messages, struct json_object *block, server_error *error)
{
    cli_buffer text = {NULL, 0, 0};
    if (!json_object_is_type(json_object_object_get(block, "tool_use_id"), json_type_string)) {
        return refuse(error, "a tool_result needs 'tool_use_id'.");
    }
    if (!append_text(&text, json_object_object_get(block, "content"))) {
        cli_buffer_free(&text);
        return refuse(error, "the content of a tool_result must be text.");
    }
    struct json_object *message = new_message("tool", take_text(&text));
    cli_json_put(message, "tool_call_id",
                 json_object_get(json_object_object_get(block, "tool_use_id")));
    cli_json_append(messages, message);
    return true;
}

/* Converts a block {"type": "tool_use", "id": .., "name": .., "input": {..}} to a call of the
 * assistant's message. */
static bool add_use(struct json_object *calls, struct json_object *block, server_error *error)
{
    struct json_object *call = json_object_new_object();
    struct json_object *function = json_object_new_object();
    const char *input =
        json_object_to_json_string_ext(json_object_object_get(block, "input"),
                                       JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE);
    bool whole = json_object_is_type(json_object_object_get(block, "id"), json_type_string) &&
                 json_object_is_type(json_object_object_get(block, "name"), json_type_string) &&
                 json_object_is_type(json_object_object_get(block, "input"), json_type_object) &&
                 input != NULL;
    if (whole) {
        cli_json_put(call, "id", json_object_get(json_object_object_get(block, "id")));
        server_put_text(function, "arguments", input);
        cli_json_put(function, "name", json_object_get(json_object_object_get(block, "name")));
    }
    server_put_text(call, "type", "function");
    cli_json_put(call, "function", function);
    cli_json_append(calls, call);
    return whole || refuse(error, "a tool_use needs 'id', 'name' and 'input'.");
}

/* Converts the blocks of one message. Each tool result becomes a message of its own, before the
 * message's text. */
static bool add_blocks(struct json_object *messages, const char *role, struct json_object *blocks,
                       server_error *error)
{
    cli_buffer text = {NULL, 0, 0}, thoughts = {NULL, 0, 0};
    struct json_object *calls = json_object_new_array();
    bool goes_on = true;
    for (size_t i = 0; goes_on && i < json_object_array_length(blocks); i++) {
        struct json_object *block = json_object_array_get_idx(blocks, i);
        if (is_type(block, "text")) {
            goes_on = append_text(&text, json_object_object_get(block, "text"));
        } else if (is_type(block, "thinking")) {
            goes_on = append_text(&thoughts, json_object_object_get(block, "thinking"));
        } else if (is_type(block, "tool_result")) {
            goes_on = add_result(messages, block, error);
        } else if (is_type(block, "tool_use")) {
            goes_on = add_use(calls, block, error);
        } else {
            goes_on = refuse(error, "blocks may be of type text, thinking, tool_use and "
                                    "tool_result.");
        }
    }
    bool has_calls = json_object_array_length(calls) > 0;
    if (goes_on && (text.size > 0 || thoughts.size > 0 || has_calls)) {
        struct json_object *message = new_message(role, take_text(&text));
        if (thoughts.size > 0) {
            cli_json_put(message, "reasoning_content", take_text(&thoughts));
        }
        if (has_calls) {
            cli_json_put(message, "tool_calls", json_object_get(calls));
        }
        cli_json_append(messages, message);
    }
    cli_buffer_free(&text);
    cli_buffer_free(&thoughts);
    json_object_put(calls);
    return goes_on || error->status != 0 || refuse(error, "a block of text has no text.");
}

bool server_convert_blocks(server_request *request, server_error *error)
{
    struct json_object *converted = json_object_new_array();
    bool goes_on = true;
    for (size_t i = 0; goes_on && i < json_object_array_length(request->messages); i++) {
        struct json_object *message = json_object_array_get_idx(request->messages, i);
        struct json_object *role = json_object_object_get(message, "role"),
                           *content = json_object_object_get(message, "content");
        if (json_object_is_type(content, json_type_array) &&
            json_object_is_type(role, json_type_string)) {
            goes_on = add_blocks(converted, json_object_get_string(role), content, error);
        } else {
            cli_json_append(converted, json_object_get(message));
        }
    }
    json_object_put(request->converted);
    request->converted = converted;
    request->messages = converted;
    return goes_on && error->status == 0;
}
