/* SPDX-License-Identifier: MIT */
/* Answers of /v1/chat/completions and /v1/completions. */
#include <string.h>

#include "cli_json.h"
#include "server_logprobs.h"
#include "server_reply.h"

static bool is_chat(const server_reply *reply)
{
    return reply->endpoint == SERVER_CHAT;
}

/* Creates an answer's object with the members that all kinds of answers begin with. */
static struct json_object *new_answer(const server_reply *reply, const char *kind)
{
    struct json_object *answer = json_object_new_object();
    server_put_text(answer, "id", reply->id);
    server_put_text(answer, "object", kind);
    cli_json_put(answer, "created", json_object_new_int64(reply->created));
    server_put_text(answer, "model", reply->model);
    server_put_text(answer, "system_fingerprint", reply->fingerprint);
    return answer;
}

static const char *finish_word(const server_choice *answer)
{
    return answer->finish == SERVER_FINISH_LENGTH ? "length"
           : answer->tools.n_calls > 0            ? "tool_calls"
                                                  : "stop";
}

/* Creates one element of `choices`. If `ends` is true, it also says why the text ended. If
 * reports on tokens are due, it has a mark in their place. */
static struct json_object *new_choice(const server_reply *reply, uint32_t index, const char *key,
                                      struct json_object *value, bool ends)
{
    const server_choice *answer = &reply->answers[index];
    struct json_object *choice = json_object_new_object();
    cli_json_u64(choice, "index", index);
    cli_json_put(choice, key, value);
    if (reply->logprobs && answer->reports_now > 0 && answer->reports.size > 0) {
        cli_json_put(choice, "logprobs", server_logprobs_mark(index));
    } else {
        cli_json_null(choice, "logprobs");
    }
    if (ends) {
        server_put_text(choice, "finish_reason", finish_word(answer));
    } else {
        cli_json_null(choice, "finish_reason");
    }
    return choice;
}

static void put_usage(struct json_object *answer, const server_reply *reply)
{
    struct json_object *usage = json_object_new_object();
    struct json_object *details = json_object_new_object();
    uint64_t n_written = server_reply_written(reply);
    cli_json_u64(usage, "prompt_tokens", reply->n_prompt);
    cli_json_u64(usage, "completion_tokens", n_written);
    cli_json_u64(usage, "total_tokens", reply->n_prompt + n_written);
    cli_json_u64(details, "cached_tokens", reply->n_cached);
    cli_json_put(usage, "prompt_tokens_details", details);
    cli_json_put(answer, "usage", usage);
}

static struct json_object *new_call(const server_tool_call *told)
{
    struct json_object *call = json_object_new_object();
    cli_json_text(call, "id", told->id);
    server_put_text(call, "type", "function");
    return call;
}

static void put_function(struct json_object *call, const server_tool_call *told, bool is_new,
                         size_t from)
{
    struct json_object *function = json_object_new_object();
    if (is_new) {
        cli_json_put(function, "name", server_text_from(&told->name, 0));
    }
    cli_json_put(function, "arguments", server_text_from(&told->arguments, from));
    cli_json_put(call, "function", function);
}

static struct json_object *new_calls(const server_choice *answer)
{
    struct json_object *calls = json_object_new_array();
    for (uint32_t i = 0; i < answer->tools.n_calls; i++) {
        struct json_object *call = new_call(&answer->tools.calls[i]);
        put_function(call, &answer->tools.calls[i], true, 0);
        cli_json_append(calls, call);
    }
    return calls;
}

/* Returns the parts of calls that the stream has not sent yet. Each part has its call's number;
 * only the first part of a call has the id and the name. */
static struct json_object *new_calls_news(const server_choice *answer)
{
    size_t told;
    struct json_object *calls = json_object_new_array();
    for (uint32_t i = server_next_call(answer, &told); i < answer->tools.n_calls; i++) {
        bool is_new = i >= answer->calls_told;
        struct json_object *call =
            is_new ? new_call(&answer->tools.calls[i]) : json_object_new_object();
        cli_json_u64(call, "index", i);
        put_function(call, &answer->tools.calls[i], is_new, is_new ? 0 : told);
        cli_json_append(calls, call);
    }
    return calls;
}

static struct json_object *new_message(const server_choice *answer)
{
    struct json_object *message = json_object_new_object();
    server_put_text(message, "role", "assistant");
    cli_json_put(message, "content", server_text_from(&answer->content, 0));
    if (answer->reasoning.size > 0) {
        cli_json_put(message, "reasoning_content", server_text_from(&answer->reasoning, 0));
    }
    if (answer->tools.n_calls > 0) {
        if (answer->content.size == 0) {
            cli_json_null(message, "content");
        }
        cli_json_put(message, "tool_calls", new_calls(answer));
    }
    cli_json_null(message, "refusal");
    return message;
}

static bool whole(const server_reply *reply, cli_buffer *out)
{
    bool chat = is_chat(reply);
    struct json_object *object = new_answer(reply, chat ? "chat.completion" : "text_completion");
    struct json_object *choices = json_object_new_array();
    for (uint32_t i = 0; i < reply->n_answers; i++) {
        const server_choice *answer = &reply->answers[i];
        struct json_object *value =
            chat ? new_message(answer) : server_text_from(&answer->content, 0);
        cli_json_append(choices, new_choice(reply, i, chat ? "message" : "text", value, true));
    }
    cli_json_put(object, "choices", choices);
    put_usage(object, reply);
    return server_append_json(object, out);
}

/* ---- Streams ---- */

/* Adds how much of the prompt has been evaluated, with the members that llama-server uses. */
static void put_progress(struct json_object *chunk, const server_reply *reply,
                         const server_choice *answer)
{
    struct json_object *progress = json_object_new_object();
    cli_json_u64(progress, "total", reply->n_prompt);
    cli_json_u64(progress, "cache", reply->n_cached);
    cli_json_u64(progress, "processed", answer->n_read);
    cli_json_u64(progress, "time_ms", answer->reading_ns / 1000000);
    cli_json_put(chunk, "prompt_progress", progress);
}

/* Appends one event of a stream. choice NULL: the event holds the token counts. read: the answer
 * whose prompt's progress is reported, or NULL. */
static bool append_chunk_with(const server_reply *reply, struct json_object *choice,
                              const server_choice *read, cli_buffer *out)
{
    struct json_object *chunk =
        new_answer(reply, is_chat(reply) ? "chat.completion.chunk" : "text_completion");
    if (read != NULL) {
        put_progress(chunk, reply, read);
    }
    struct json_object *choices = json_object_new_array();
    if (choice != NULL) {
        cli_json_append(choices, choice);
    }
    cli_json_put(chunk, "choices", choices);
    if (reply->include_usage && choice != NULL) {
        cli_json_null(chunk, "usage");
    } else if (reply->include_usage) {
        put_usage(chunk, reply);
    }
    cli_buffer event = {NULL, 0, 0};
    bool stored = server_append_event(NULL, chunk, &event) &&
                  server_logprobs_fill(reply, event.data, event.size, out);
    cli_buffer_free(&event);
    return stored;
}

static bool append_chunk(const server_reply *reply, struct json_object *choice, cli_buffer *out)
{
    return append_chunk_with(reply, choice, NULL, out);
}

static bool progress(server_reply *reply, uint32_t index, cli_buffer *out)
{
    bool chat = is_chat(reply);
    struct json_object *value = chat ? json_object_new_object() : json_object_new_string("");
    return append_chunk_with(reply, new_choice(reply, index, chat ? "delta" : "text", value, false),
                             &reply->answers[index], out);
}

static bool begin(server_reply *reply, cli_buffer *out)
{
    bool stored = true;
    for (uint32_t i = 0; i < reply->n_answers && is_chat(reply) && stored; i++) {
        struct json_object *delta = json_object_new_object();
        server_put_text(delta, "role", "assistant");
        server_put_text(delta, "content", "");
        stored = append_chunk(reply, new_choice(reply, i, "delta", delta, false), out);
    }
    return stored;
}

static bool piece(server_reply *reply, uint32_t index, cli_buffer *out)
{
    server_choice *answer = &reply->answers[index];
    struct json_object *value;
    if (is_chat(reply)) {
        value = json_object_new_object();
        if (answer->reasoning.size > answer->reasoning_told) {
            cli_json_put(value, "reasoning_content",
                         server_text_from(&answer->reasoning, answer->reasoning_told));
        }
        if (answer->content.size > answer->content_told) {
            cli_json_put(value, "content",
                         server_text_from(&answer->content, answer->content_told));
        }
        size_t told;
        if (server_next_call(answer, &told) < answer->tools.n_calls) {
            cli_json_put(value, "tool_calls", new_calls_news(answer));
        }
    } else {
        value = server_text_from(&answer->content, answer->content_told);
    }
    return append_chunk(
        reply, new_choice(reply, index, is_chat(reply) ? "delta" : "text", value, false), out);
}

static bool finish(server_reply *reply, uint32_t index, cli_buffer *out)
{
    bool chat = is_chat(reply);
    struct json_object *value = chat ? json_object_new_object() : json_object_new_string("");
    return append_chunk(reply, new_choice(reply, index, chat ? "delta" : "text", value, true), out);
}

static bool end(server_reply *reply, cli_buffer *out)
{
    return (!reply->include_usage || append_chunk(reply, NULL, out)) &&
           cli_buffer_append(out, "data: [DONE]\n\n", 14);
}

static bool broken(const server_error *error, cli_buffer *out)
{
    return server_append_event(NULL, server_error_object(error), out);
}

const server_dialect server_openai = {
    .whole = whole,
    .begin = begin,
    .progress = progress,
    .piece = piece,
    .finish = finish,
    .end = end,
    .broken = broken,
};
