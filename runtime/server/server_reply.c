/* SPDX-License-Identifier: MIT */
#include "server_reply.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "cli_json.h"

void server_reply_begin(server_reply *reply, const server_request *request, const char *model,
                        uint64_t fingerprint)
{
    uint64_t words[2] = {0, 0};
    memset(reply, 0, sizeof *reply);
    if (getrandom(words, sizeof words, 0) != sizeof words) {
        words[0] = (uint64_t)time(NULL);
    }
    snprintf(reply->id, sizeof reply->id, "%s-%016" PRIx64 "%016" PRIx64,
             request->endpoint == SERVER_CHAT ? "chatcmpl" : "cmpl", words[0], words[1]);
    snprintf(reply->fingerprint, sizeof reply->fingerprint, "fp_%016" PRIx64, fingerprint);
    reply->endpoint = request->endpoint;
    reply->include_usage = request->include_usage;
    reply->model = model;
    reply->created = (int64_t)time(NULL);
    reply->n_prompt = request->job->n_tokens;
}

bool server_append_json(struct json_object *object, cli_buffer *out)
{
    const int style = JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE;
    size_t size = 0;
    const char *text =
        object == NULL ? NULL : json_object_to_json_string_length(object, style, &size);
    bool stored = text != NULL && cli_buffer_append(out, text, size);
    json_object_put(object);
    return stored;
}

static bool append_event(struct json_object *object, cli_buffer *out)
{
    return cli_buffer_append(out, "data: ", 6) && server_append_json(object, out) &&
           cli_buffer_append(out, "\n\n", 2);
}

static struct json_object *text_of(const cli_buffer *buffer)
{
    return cli_json_new_text(buffer->size == 0 ? "" : buffer->data, buffer->size);
}

static void put_text(struct json_object *object, const char *key, const char *text)
{
    cli_json_put(object, key, json_object_new_string(text));
}

/* The object with what all of them begin with. */
static struct json_object *new_answer(const server_reply *reply, const char *kind)
{
    struct json_object *answer = json_object_new_object();
    put_text(answer, "id", reply->id);
    put_text(answer, "object", kind);
    cli_json_put(answer, "created", json_object_new_int64(reply->created));
    put_text(answer, "model", reply->model);
    put_text(answer, "system_fingerprint", reply->fingerprint);
    return answer;
}

static const char *finish_word(server_finish finish)
{
    return finish == SERVER_FINISH_LENGTH ? "length" : "stop";
}

/* Adds the one choice; finish NULL: the text goes on. */
static void put_choice(struct json_object *answer, const char *key, struct json_object *value,
                       const char *finish)
{
    struct json_object *choices = json_object_new_array();
    struct json_object *choice = json_object_new_object();
    cli_json_u64(choice, "index", 0);
    cli_json_put(choice, key, value);
    cli_json_null(choice, "logprobs");
    if (finish == NULL) {
        cli_json_null(choice, "finish_reason");
    } else {
        put_text(choice, "finish_reason", finish);
    }
    cli_json_append(choices, choice);
    cli_json_put(answer, "choices", choices);
}

static void put_usage(struct json_object *answer, const server_reply *reply)
{
    struct json_object *usage = json_object_new_object();
    struct json_object *details = json_object_new_object();
    cli_json_u64(usage, "prompt_tokens", reply->n_prompt);
    cli_json_u64(usage, "completion_tokens", reply->n_written);
    cli_json_u64(usage, "total_tokens", reply->n_prompt + reply->n_written);
    cli_json_u64(details, "cached_tokens", reply->n_cached);
    cli_json_put(usage, "prompt_tokens_details", details);
    cli_json_put(answer, "usage", usage);
}

bool server_reply_whole(const server_reply *reply, const cli_buffer *content,
                        const cli_buffer *reasoning, server_finish finish, cli_buffer *out)
{
    bool chat = reply->endpoint == SERVER_CHAT;
    struct json_object *answer = new_answer(reply, chat ? "chat.completion" : "text_completion");
    if (chat) {
        struct json_object *message = json_object_new_object();
        put_text(message, "role", "assistant");
        cli_json_put(message, "content", text_of(content));
        if (reasoning->size > 0) {
            cli_json_put(message, "reasoning_content", text_of(reasoning));
        }
        cli_json_null(message, "refusal");
        put_choice(answer, "message", message, finish_word(finish));
    } else {
        put_choice(answer, "text", text_of(content), finish_word(finish));
    }
    put_usage(answer, reply);
    return server_append_json(answer, out);
}

static struct json_object *new_chunk(const server_reply *reply)
{
    struct json_object *chunk = new_answer(
        reply, reply->endpoint == SERVER_CHAT ? "chat.completion.chunk" : "text_completion");
    if (reply->include_usage) {
        cli_json_null(chunk, "usage");
    }
    return chunk;
}

bool server_reply_role(const server_reply *reply, cli_buffer *out)
{
    if (reply->endpoint != SERVER_CHAT) {
        return true;
    }
    struct json_object *chunk = new_chunk(reply);
    struct json_object *delta = json_object_new_object();
    put_text(delta, "role", "assistant");
    put_text(delta, "content", "");
    put_choice(chunk, "delta", delta, NULL);
    return append_event(chunk, out);
}

bool server_reply_piece(const server_reply *reply, const cli_buffer *content,
                        const cli_buffer *reasoning, cli_buffer *out)
{
    if (content->size == 0 && reasoning->size == 0) {
        return true;
    }
    struct json_object *chunk = new_chunk(reply);
    if (reply->endpoint == SERVER_CHAT) {
        struct json_object *delta = json_object_new_object();
        if (reasoning->size > 0) {
            cli_json_put(delta, "reasoning_content", text_of(reasoning));
        }
        if (content->size > 0) {
            cli_json_put(delta, "content", text_of(content));
        }
        put_choice(chunk, "delta", delta, NULL);
    } else {
        put_choice(chunk, "text", text_of(content), NULL);
    }
    return append_event(chunk, out);
}

bool server_reply_end(const server_reply *reply, server_finish finish, cli_buffer *out)
{
    static const cli_buffer empty = {NULL, 0, 0};
    bool chat = reply->endpoint == SERVER_CHAT;
    struct json_object *chunk = new_chunk(reply);
    put_choice(chunk, chat ? "delta" : "text", chat ? json_object_new_object() : text_of(&empty),
               finish_word(finish));
    bool stored = append_event(chunk, out);
    if (stored && reply->include_usage) {
        struct json_object *usage =
            new_answer(reply, chat ? "chat.completion.chunk" : "text_completion");
        cli_json_put(usage, "choices", json_object_new_array());
        put_usage(usage, reply);
        stored = append_event(usage, out);
    }
    return stored && cli_buffer_append(out, "data: [DONE]\n\n", 14);
}

static struct json_object *error_object(const server_error *error)
{
    struct json_object *outer = json_object_new_object();
    struct json_object *inner = json_object_new_object();
    cli_json_text(inner, "message", error->message);
    put_text(inner, "type", error->type);
    if (error->field[0] != '\0') {
        cli_json_text(inner, "param", error->field);
    } else {
        cli_json_null(inner, "param");
    }
    if (error->code != NULL) {
        put_text(inner, "code", error->code);
    } else {
        cli_json_null(inner, "code");
    }
    cli_json_put(outer, "error", inner);
    return outer;
}

bool server_reply_broken(const server_error *error, cli_buffer *out)
{
    return append_event(error_object(error), out);
}

bool server_reply_error(const server_error *error, cli_buffer *out)
{
    return server_append_json(error_object(error), out);
}
