/* SPDX-License-Identifier: MIT */
/* Answers of /v1/messages: blocks of text, and before them a block of thinking if the model
 * reasons. */
#include <string.h>

#include "cli_json.h"
#include "server_reply.h"

static const char *stop_word(const server_choice *answer)
{
    return answer->finish == SERVER_FINISH_LENGTH   ? "max_tokens"
           : answer->finish == SERVER_FINISH_STRING ? "stop_sequence"
           : answer->tools.n_calls > 0              ? "tool_use"
                                                    : "end_turn";
}

static void put_stop(struct json_object *object, const server_reply *reply)
{
    const server_choice *answer = &reply->answers[0];
    const server_stops *stops = &reply->job->stops;
    server_put_text(object, "stop_reason", stop_word(answer));
    if (answer->finish == SERVER_FINISH_STRING && answer->stop < stops->n) {
        cli_json_put(object, "stop_sequence",
                     cli_json_new_text(stops->texts[answer->stop], stops->sizes[answer->stop]));
    } else {
        cli_json_null(object, "stop_sequence");
    }
}

static struct json_object *new_usage(const server_reply *reply)
{
    struct json_object *usage = json_object_new_object();
    cli_json_u64(usage, "input_tokens", reply->n_prompt - reply->n_cached);
    cli_json_u64(usage, "cache_read_input_tokens", reply->n_cached);
    cli_json_u64(usage, "cache_creation_input_tokens", 0);
    cli_json_u64(usage, "output_tokens", server_reply_written(reply));
    return usage;
}

static struct json_object *new_message(const server_reply *reply, struct json_object *content)
{
    struct json_object *message = json_object_new_object();
    server_put_text(message, "id", reply->id);
    server_put_text(message, "type", "message");
    server_put_text(message, "role", "assistant");
    server_put_text(message, "model", reply->model);
    cli_json_put(message, "content", content);
    return message;
}

static struct json_object *new_block(const char *type, struct json_object *text)
{
    bool thinks = strcmp(type, "thinking") == 0;
    struct json_object *block = json_object_new_object();
    server_put_text(block, "type", type);
    cli_json_put(block, type, text);
    if (thinks) {
        server_put_text(block, "signature", "");
    }
    return block;
}

/* Returns a block of a tool call. Its input is an object; in a stream, an empty object. */
static struct json_object *new_use(const server_tool_call *call, bool with_input)
{
    struct json_object *block = json_object_new_object();
    server_put_text(block, "type", "tool_use");
    cli_json_text(block, "id", call->id);
    cli_json_put(block, "name", server_text_from(&call->name, 0));
    cli_json_put(block, "input",
                 with_input ? json_tokener_parse(call->arguments.data) : json_object_new_object());
    return block;
}

static bool whole(const server_reply *reply, cli_buffer *out)
{
    const server_choice *answer = &reply->answers[0];
    struct json_object *content = json_object_new_array();
    if (answer->reasoning.size > 0) {
        cli_json_append(content, new_block("thinking", server_text_from(&answer->reasoning, 0)));
    }
    if (answer->content.size > 0) {
        cli_json_append(content, new_block("text", server_text_from(&answer->content, 0)));
    }
    for (uint32_t i = 0; i < answer->tools.n_calls; i++) {
        cli_json_append(content, new_use(&answer->tools.calls[i], true));
    }
    struct json_object *message = new_message(reply, content);
    put_stop(message, reply);
    cli_json_put(message, "usage", new_usage(reply));
    return server_append_json(message, out);
}

/* ---- Streams ---- */

static struct json_object *new_event(const char *type)
{
    struct json_object *event = json_object_new_object();
    server_put_text(event, "type", type);
    return event;
}

static bool begin(server_reply *reply, cli_buffer *out)
{
    struct json_object *event = new_event("message_start");
    struct json_object *message = new_message(reply, json_object_new_array());
    cli_json_null(message, "stop_reason");
    cli_json_null(message, "stop_sequence");
    cli_json_put(message, "usage", new_usage(reply));
    cli_json_put(event, "message", message);
    return server_append_event("message_start", event, out);
}

static bool close_block(server_reply *reply, cli_buffer *out)
{
    if (reply->block == NULL) {
        return true;
    }
    struct json_object *event = new_event("content_block_stop");
    cli_json_u64(event, "index", reply->n_blocks - 1);
    reply->block = NULL;
    return server_append_event("content_block_stop", event, out);
}

/* Opens a block of this type, unless the open block has it. */
static bool open_block(server_reply *reply, const char *type, cli_buffer *out)
{
    if (reply->block != NULL && strcmp(reply->block, type) == 0) {
        return true;
    }
    if (!close_block(reply, out)) {
        return false;
    }
    struct json_object *event = new_event("content_block_start");
    cli_json_u64(event, "index", reply->n_blocks++);
    cli_json_put(event, "content_block", new_block(type, json_object_new_string("")));
    reply->block = type;
    return server_append_event("content_block_start", event, out);
}

static bool append_delta(server_reply *reply, const char *type, const cli_buffer *text, size_t told,
                         cli_buffer *out)
{
    bool thinks = strcmp(type, "thinking") == 0;
    if (text->size <= told) {
        return true;
    }
    if (!open_block(reply, type, out)) {
        return false;
    }
    struct json_object *event = new_event("content_block_delta");
    struct json_object *delta = new_event(thinks ? "thinking_delta" : "text_delta");
    cli_json_put(delta, type, server_text_from(text, told));
    cli_json_u64(event, "index", reply->n_blocks - 1);
    cli_json_put(event, "delta", delta);
    return server_append_event("content_block_delta", event, out);
}

/* Appends events of a call: begins its block if it is new, sends the new part of its input, and
 * ends the block if the call is complete. */
static bool append_use(server_reply *reply, const server_tool_call *call, bool is_new, size_t told,
                       bool ends, cli_buffer *out)
{
    bool stored = true;
    if (is_new) {
        stored = close_block(reply, out);
        struct json_object *start = new_event("content_block_start");
        cli_json_u64(start, "index", reply->n_blocks++);
        cli_json_put(start, "content_block", new_use(call, false));
        reply->block = "tool_use";
        stored = server_append_event("content_block_start", start, out) && stored;
    }
    if (stored && call->arguments.size > told) {
        struct json_object *event = new_event("content_block_delta");
        struct json_object *delta = new_event("input_json_delta");
        cli_json_put(delta, "partial_json", server_text_from(&call->arguments, told));
        cli_json_u64(event, "index", reply->n_blocks - 1);
        cli_json_put(event, "delta", delta);
        stored = server_append_event("content_block_delta", event, out);
    }
    return stored && (!ends || close_block(reply, out));
}

static bool piece(server_reply *reply, uint32_t index, cli_buffer *out)
{
    const server_choice *answer = &reply->answers[index];
    bool stored =
        append_delta(reply, "thinking", &answer->reasoning, answer->reasoning_told, out) &&
        append_delta(reply, "text", &answer->content, answer->content_told, out);
    size_t told;
    for (uint32_t i = server_next_call(answer, &told); i < answer->tools.n_calls && stored; i++) {
        bool is_new = i >= answer->calls_told;
        bool ends = i + 1 < answer->tools.n_calls || !answer->tools.is_open;
        stored = append_use(reply, &answer->tools.calls[i], is_new, is_new ? 0 : told, ends, out);
    }
    return stored;
}

static bool finish(server_reply *reply, uint32_t index, cli_buffer *out)
{
    (void)index;
    if (!close_block(reply, out)) {
        return false;
    }
    struct json_object *event = new_event("message_delta");
    struct json_object *delta = json_object_new_object();
    put_stop(delta, reply);
    cli_json_put(event, "delta", delta);
    cli_json_put(event, "usage", new_usage(reply));
    return server_append_event("message_delta", event, out);
}

static bool end(server_reply *reply, cli_buffer *out)
{
    (void)reply;
    return server_append_event("message_stop", new_event("message_stop"), out);
}

struct json_object *server_messages_error(const server_error *error)
{
    struct json_object *outer = new_event("error");
    struct json_object *inner = json_object_new_object();
    server_put_text(inner, "type",
                    error->status == 404   ? "not_found_error"
                    : error->status == 413 ? "request_too_large"
                    : error->status == 503 ? "overloaded_error"
                    : error->status >= 500 ? "api_error"
                                           : error->type);
    cli_json_text(inner, "message", error->message);
    cli_json_put(outer, "error", inner);
    return outer;
}

static bool broken(const server_error *error, cli_buffer *out)
{
    return server_append_event("error", server_messages_error(error), out);
}

const server_dialect server_messages = {
    .whole = whole,
    .begin = begin,
    .piece = piece,
    .finish = finish,
    .end = end,
    .broken = broken,
};
