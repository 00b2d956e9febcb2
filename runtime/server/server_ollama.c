/* SPDX-License-Identifier: MIT */
/* Ollama's interface: /api/chat and /api/generate, whose streams are lines of JSON. Sampling and
 * the form of an answer have other names there, and calls of tools have objects as arguments. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "cli_json.h"
#include "server_clock.h"
#include "server_reply.h"
#include "server_values.h"

/* ---- Fields ---- */

bool server_read_ollama_messages(server_reading *r, struct json_object *value)
{
    const size_t n =
        json_object_is_type(value, json_type_array) ? json_object_array_length(value) : 0;
    for (size_t i = 0; i < n; i++) {
        struct json_object *images =
            json_object_object_get(json_object_array_get_idx(value, i), "images");
        if (images != NULL && !server_is_nothing(images)) {
            return server_wrong(r, "messages without images: the model reads text alone");
        }
    }
    r->request->messages = value;
    return n > 0 || server_wrong(r, "an array of at least one message");
}

/* Reads the object `options`: {"temperature": .., "num_predict": ..}. Ignores options about the
 * machine (num_ctx, num_gpu). */
bool server_read_ollama_options(server_reading *r, struct json_object *value)
{
    static const struct {
        const char *name;
        bool (*read)(server_reading *r, struct json_object *value);
    } options[] = {
        {"num_predict", server_read_n_predict},
        {"temperature", server_read_temperature},
        {"top_p", server_read_top_p},
        {"top_k", server_read_top_k},
        {"min_p", server_read_min_p},
        {"seed", server_read_seed},
        {"stop", server_read_stop},
        {"repeat_penalty", server_read_repeat_penalty},
        {"presence_penalty", server_read_presence_penalty},
        {"frequency_penalty", server_read_frequency_penalty},
    };
    if (!json_object_is_type(value, json_type_object)) {
        return server_wrong(r, "an object");
    }
    json_object_object_foreach(value, key, member)
    {
        for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
            server_reading option = {r->request, r->options, options[i].name, r->error};
            if (strcmp(key, options[i].name) == 0 && member != NULL &&
                !options[i].read(&option, member)) {
                return false;
            }
        }
    }
    return true;
}

/* Reads `format`: "json", or a JSON schema. */
bool server_read_ollama_format(server_reading *r, struct json_object *value)
{
    if (json_object_is_type(value, json_type_object)) {
        return server_read_json_schema(r, value);
    }
    if (!server_is_text(value, "json")) {
        return server_is_nothing(value) || server_wrong(r, "'json', or a JSON schema");
    }
    struct json_object *any = json_object_new_object();
    server_put_text(any, "type", "json_object");
    bool read = server_read_response_format(r, any);
    json_object_put(any);
    return read;
}

/* Reads `think`: whether the model reasons, or how much. */
bool server_read_think(server_reading *r, struct json_object *value)
{
    if (json_object_is_type(value, json_type_boolean)) {
        r->request->thinks = json_object_get_boolean(value) ? MOE_SWITCH_ON : MOE_SWITCH_OFF;
        return true;
    }
    r->request->thinks = MOE_SWITCH_ON;
    return server_read_effort(r, value);
}

bool server_read_raw(server_reading *r, struct json_object *value)
{
    return server_get_flag(r, value, &r->request->is_raw);
}

/* Turns the prompt of /api/generate into a user's message. Not called for a raw prompt, or one
 * with a suffix. */
bool server_convert_prompt(server_request *request, server_error *error)
{
    struct json_object *message = json_object_new_object();
    if (!json_object_is_type(request->prompt, json_type_string)) {
        json_object_put(message);
        return server_fail(error, 400, "invalid_value", "prompt", "'prompt' must be a string.");
    }
    server_put_text(message, "role", "user");
    cli_json_put(message, "content", json_object_get(request->prompt));
    request->converted = request->messages = json_object_new_array();
    cli_json_append(request->messages, message);
    return true;
}

/* ---- Answers ---- */

static bool is_chat(const server_reply *reply)
{
    return reply->endpoint == SERVER_OLLAMA_CHAT;
}

/* Returns the calls from number `from` on, which the stream has not sent yet. */
static struct json_object *new_calls(const server_choice *answer, uint32_t from)
{
    struct json_object *calls = json_object_new_array();
    for (uint32_t i = from; i < answer->tools.n_calls; i++) {
        const server_tool_call *told = &answer->tools.calls[i];
        struct json_object *call = json_object_new_object();
        struct json_object *function = json_object_new_object();
        struct json_object *arguments =
            told->arguments.size == 0 ? NULL : json_tokener_parse(told->arguments.data);
        cli_json_put(function, "name", server_text_from(&told->name, 0));
        cli_json_put(function, "arguments",
                     arguments != NULL ? arguments : json_object_new_object());
        cli_json_text(call, "id", told->id);
        cli_json_put(call, "function", function);
        cli_json_append(calls, call);
    }
    return calls;
}

static struct json_object *new_line(const server_reply *reply, size_t content_from,
                                    size_t reasoning_from, uint32_t calls_from)
{
    const server_choice *answer = &reply->answers[0];
    struct json_object *line = json_object_new_object();
    struct json_object *holder = is_chat(reply) ? json_object_new_object() : line;
    char when[32];
    struct tm broken_down;
    const time_t created = (time_t)reply->created;
    gmtime_r(&created, &broken_down);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &broken_down);
    server_put_text(line, "model", reply->model);
    server_put_text(line, "created_at", when);
    if (is_chat(reply)) {
        server_put_text(holder, "role", "assistant");
    }
    cli_json_put(holder, is_chat(reply) ? "content" : "response",
                 server_text_from(&answer->content, content_from));
    if (answer->reasoning.size > reasoning_from) {
        cli_json_put(holder, "thinking", server_text_from(&answer->reasoning, reasoning_from));
    }
    if (answer->tools.n_calls > calls_from) {
        cli_json_put(holder, "tool_calls", new_calls(answer, calls_from));
    }
    if (is_chat(reply)) {
        cli_json_put(line, "message", holder);
    }
    return line;
}

static void put_end(struct json_object *line, const server_reply *reply)
{
    cli_json_put(line, "done", json_object_new_boolean(true));
    server_put_text(line, "done_reason",
                    reply->answers[0].finish == SERVER_FINISH_LENGTH ? "length" : "stop");
    cli_json_u64(line, "total_duration", server_now_ns() - reply->began_ns);
    cli_json_u64(line, "prompt_eval_count", reply->n_prompt);
    cli_json_u64(line, "eval_count", server_reply_written(reply));
}

static bool whole(const server_reply *reply, cli_buffer *out)
{
    struct json_object *line = new_line(reply, 0, 0, 0);
    put_end(line, reply);
    return server_append_json(line, out);
}

static bool append_line(struct json_object *line, cli_buffer *out)
{
    return server_append_json(line, out) && cli_buffer_append(out, "\n", 1);
}

static bool begin(server_reply *reply, cli_buffer *out)
{
    (void)reply;
    (void)out;
    return true;
}

static bool piece(server_reply *reply, uint32_t index, cli_buffer *out)
{
    const server_choice *answer = &reply->answers[index];
    struct json_object *line =
        new_line(reply, answer->content_told, answer->reasoning_told, answer->calls_told);
    cli_json_put(line, "done", json_object_new_boolean(false));
    return append_line(line, out);
}

static bool finish(server_reply *reply, uint32_t index, cli_buffer *out)
{
    const server_choice *answer = &reply->answers[index];
    struct json_object *line =
        new_line(reply, answer->content.size, answer->reasoning.size, answer->tools.n_calls);
    put_end(line, reply);
    return append_line(line, out);
}

static bool end(server_reply *reply, cli_buffer *out)
{
    return begin(reply, out);
}

static bool broken(const server_error *error, cli_buffer *out)
{
    return append_line(server_ollama_error(error), out);
}

struct json_object *server_ollama_error(const server_error *error)
{
    struct json_object *object = json_object_new_object();
    cli_json_text(object, "error", error->message);
    return object;
}

const server_dialect server_ollama = {
    .whole = whole,
    .begin = begin,
    .piece = piece,
    .finish = finish,
    .end = end,
    .broken = broken,
    .lines = true,
};
